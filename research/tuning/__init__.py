"""Which form of a kernel is fastest: grids of variants, checked and timed next to what ships."""
