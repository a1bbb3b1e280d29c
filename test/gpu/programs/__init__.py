"""PyTorch programs with a planted cause of GPU idle time, their fixed twins, and workloads as people run them."""
