// What happens to scores between the products: the mask, and the derivative of the softmax.
#pragma once
#include "band.cuh"
#include "mma_tile.cuh"

// S [queries, keys] of a warp, first row query0 and first column key0: S = value where the query does not see the key.
template <int M, int N>
__device__ __forceinline__ void hide_keys(float (&S)[M][N][4], const Band& band, int query0, int key0, int lane_id,
                                          float value) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = query0 + m * 16 + half * 8 + lane_id / 4;
            const int from = band.first_key(i), end = band.end_key(i);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int j = key0 + n * 8 + lane_id % 4 * 2 + e;
                    if (j < from || j >= end) S[m][n][half * 2 + e] = value;
                }
        }
}

// The same for S^T [keys, queries], first row key0 and first column query0.
template <int M, int N>
__device__ __forceinline__ void hide_queries(float (&S)[M][N][4], const Band& band, int key0, int query0, int lane_id,
                                             float value) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int j = key0 + m * 16 + half * 8 + lane_id / 4;
            const int from = band.first_query(j), end = band.end_query(j);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int i = query0 + n * 8 + lane_id % 4 * 2 + e;
                    if (i < from || i >= end) S[m][n][half * 2 + e] = value;
                }
        }
}

// S = tanh(S scale / softcap): the capped score in units of the softcap. Before the mask.
template <int M, int N> __device__ __forceinline__ void cap(float (&S)[M][N][4], float scale_over_softcap) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) S[m][n][e] = tanhf(S[m][n][e] * scale_over_softcap);
}

// The scale of scores in the backward, in log2 units, and the score of a key that is not seen: an infinity that the
// scale turns into -inf. A zero scale becomes one so small that it changes no finite score.
struct BackwardScale {
    float log2, hidden, over_softcap;
    __device__ __forceinline__ BackwardScale(float scale, float softcap) {
        const float log2_e = 1.4426950408889634f;
        over_softcap = softcap > 0.f ? scale / softcap : 0.f;
        log2 = (softcap > 0.f ? softcap : scale) * log2_e;
        if (log2 == 0.f) log2 = 1e-38f;
        hidden = log2 < 0.f ? infinity() : -infinity();
    }
};

// Of a softcap, for scores S^T [keys, queries] not yet capped:  dP := (dP - delta) (1 - tanh(x)^2) with x = S scale /
// softcap. The slope as 4 e / (1 + e)^2 with e = exp(-2 |x|): near tanh = 1 nothing would be left of the difference.
template <int M, int N>
__device__ __forceinline__ void slope_of_cap(float (&dP)[M][N][4], const float (&S)[M][N][4], const float2* delta,
                                             float scale_over_softcap) {
    const float twice_log2_e = 2.885390081777927f;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 row_delta = delta[n * 4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float e = exp2_approx(-twice_log2_e * fabsf(S[m][n][i] * scale_over_softcap));
                const float r = 2.f / (1.f + e);
                dP[m][n][i] = (dP[m][n][i] - (i % 2 ? row_delta.y : row_delta.x)) * (e * r * r);
            }
    }
}

// S^T and dP^T [keys, queries]:  S := P = exp(scale S - LSE),  dP := dS = P (dP - delta); with a softcap slope_of_cap
// has dealt with delta. lse2 and delta point at the thread's first two columns. A query that sees nothing has
// lse2 = +inf, so P = 0.
template <bool SOFTCAP, int M, int N>
__device__ __forceinline__ void differentiate(float (&S)[M][N][4], float (&dP)[M][N][4], const float2* lse2,
                                              const float2* delta, float scale_log2) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 row_lse2 = lse2[n * 4], row_delta = delta[n * 4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                S[m][n][e] = exp2_approx(fmaf(S[m][n][e], scale_log2, e % 2 ? -row_lse2.y : -row_lse2.x));
                const float difference = SOFTCAP ? dP[m][n][e] : dP[m][n][e] - (e % 2 ? row_delta.y : row_delta.x);
                dP[m][n][e] = S[m][n][e] * difference;
            }
    }
}
