"""The process and its machine: signals, threads, memory, several processes, what the library says by itself."""
