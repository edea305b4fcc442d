// The one mask rule, shared by forward and backward: query i sees key j when  i + low <= j <= i + high  and  j < Nk.
// The host turns causal, window and alignment into `low` and `high` (launch.py); unlimited sides are +-2^30.
#pragma once

struct Band {
    int low, high, Nq, Nk;

    // Keys that query i sees: [first_key, end_key). Empty when end_key <= first_key.
    __device__ __forceinline__ int first_key(int i) const { return max(0, i + low); }
    __device__ __forceinline__ int end_key(int i) const { return min(Nk, i + high + 1); }

    // Queries that see key j: [first_query, end_query). Empty when end_query <= first_query, and for j >= Nk.
    __device__ __forceinline__ int first_query(int j) const { return max(0, j - high); }
    __device__ __forceinline__ int end_query(int j) const { return j < Nk ? min(Nq, j - low + 1) : 0; }

    // True if every query in [i0, i1) sees every key in [j0, j1).
    __device__ __forceinline__ bool full(int i0, int i1, int j0, int j1) const {
        return first_key(i1 - 1) <= j0 && j1 <= end_key(i0);
    }
};
