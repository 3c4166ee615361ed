"""The command line as people use it: processes, files and signals, with real workers."""
