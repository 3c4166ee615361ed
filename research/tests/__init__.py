"""The tests of the studies: run by `make research-test`, and by no test run of the product."""
