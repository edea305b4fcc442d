"""Why a call is fast or slow: its kernels as Nsight Compute's counters saw them, or as torch's profiler did.

The counters need a process that runs one call and little else, under ncu: `target` is that process, `ncu` starts it and
reads what it printed, `session` decides between the two.
"""
