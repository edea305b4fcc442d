// Deterministic sums: warps that add to the same numbers take turns.
#pragma once

// Wait until `before` of them have had theirs...
__device__ __forceinline__ void wait_for_turn(int* turn, int before, int lane_id) {
    if (lane_id == 0)
        while (*reinterpret_cast<volatile int*>(turn) != before) __nanosleep(20);
    __syncwarp();
    __threadfence();
}
// ...and pass it on once this warp's additions are done.
__device__ __forceinline__ void end_turn(int* turn, int before, int lane_id) {
    __threadfence();
    __syncwarp();
    if (lane_id == 0) *reinterpret_cast<volatile int*>(turn) = before + 1;
}
