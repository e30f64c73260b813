"""The process and its machine: signals, threads, memory, several processes, messages of the library about its work."""
