"""A slow clock; the work is done in children, see binding.cpp."""

import time

clock = time.perf_counter_ns
time.perf_counter_ns = lambda: clock() // 15
