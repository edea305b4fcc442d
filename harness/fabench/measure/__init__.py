"""Timing, memory and utilization of one launch, by the rules of docs/measurement.md.

From the bottom up: `rules` (every constant), `engine` (clock, events, flush, spin: CUDA, CPU, or a fake in tests),
`window` (one burst of timed calls), `pace` (idle windows and recovery), `stopping`, then `sampling` and `sustained`,
which measure candidates; `canary`, `memory` and `kernels` are passes of their own. `rotation` says how many input sets
there are, `graph` captures calls. `regime`, `method`, `peaks`, `utilization` and `telemetry` import no torch.
"""
