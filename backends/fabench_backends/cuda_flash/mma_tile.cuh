// Matrix products of one warp, fragment by fragment, and what is done to their accumulators.
#pragma once
#include "ptx.cuh"
#include "tile.cuh"

// A warp's accumulator [16 M, 8 N]: in C[m][n] a thread holds row 16m + lane/4, columns 8n + lane%4*2 and the next one
// (elements 0, 1), and the same of the row eight further down (elements 2, 3).
template <int M, int N> using Accumulator = float[M][N][4];

// C += A @ B with K steps of 16. load_A(fragment, k, m) and load_B(fragment, k, n) fetch 16x16 blocks from wherever
// they are; every block of B is used M times.
template <int K, int M, int N, class LoadA, class LoadB>
__device__ __forceinline__ void multiply(float (&C)[M][N][4], LoadA load_A, LoadB load_B) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 A[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_A(A[m], k, m);
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            u32 B[4];
            load_B(B, k, n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16x8x16(C[m][2 * n], A[m], B[0], B[1]);
                mma_16x8x16(C[m][2 * n + 1], A[m], B[2], B[3]);
            }
        }
    }
}

template <int M, int N> __device__ __forceinline__ void clear(float (&C)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) C[m][n][e] = 0.f;
}

// Block (m, k) of C, rounded to 16 bits, as an A operand: the layouts agree, so nothing moves between threads.
template <int M, int N> __device__ __forceinline__ void to_A(u32 (&A)[4], const float (&C)[M][N][4], int k, int m) {
#pragma unroll
    for (int r = 0; r < 4; r++) A[r] = pack(C[m][2 * k + r / 2][r % 2 * 2], C[m][2 * k + r / 2][r % 2 * 2 + 1]);
}

// factor * C, rounded, into the swizzled tile [rows, D] at smem, from row0 and column0 on.
template <int D, int M, int N>
__device__ __forceinline__ void store_tile(unsigned char* smem, const float (&C)[M][N][4], float factor, int row0,
                                           int column0, int lane_id) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const int row = row0 + m * 16 + half * 8 + lane_id / 4, chunk = column0 / 8 + n;
                *reinterpret_cast<u32*>(smem + chunk_offset<D>(row, chunk) + lane_id % 4 * 4) =
                    pack(C[m][n][half * 2] * factor, C[m][n][half * 2 + 1] * factor);
            }
}

// [ROWS, COLUMNS] of the swizzled tile at smem, from row0 and column0 on, to `global` (which points at row 0, column 0
// of the tile), in 16-byte stores of one warp. Rows from `rows` and columns from `columns` on are left out.
template <int D, int ROWS, int COLUMNS>
__device__ __forceinline__ void copy_out(u16* global, i64 stride, const unsigned char* smem, int row0, int column0,
                                         int rows, int columns, int lane_id) {
#pragma unroll
    for (int c = lane_id; c < ROWS * COLUMNS / 8; c += 32) {
        const int row = row0 + c / (COLUMNS / 8), chunk = column0 / 8 + c % (COLUMNS / 8);
        if (row < rows && chunk * 8 < columns)
            *reinterpret_cast<uint4*>(global + row * stride + chunk * 8) =
                *reinterpret_cast<const uint4*>(smem + chunk_offset<D>(row, chunk));
    }
}

// global[r][c] += C[r][c] for r < rows and c < columns (a multiple of 8). A row's eight columns of one n lie in four
// threads; neighbours exchange halves of two n's, so that each adds four numbers at once.
template <int M, int N>
__device__ __forceinline__ void add_out(float* global, i64 stride, const float (&C)[M][N][4], int rows, int columns,
                                        int lane_id) {
    static_assert(N % 2 == 0, "neighbours share two n's");
    const bool odd = lane_id % 2;
    const int column = (odd ? 8 : 0) + lane_id % 4 / 2 * 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = m * 16 + half * 8 + lane_id / 4;
            float* to = global + row * stride + column;
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                const float* even_pair = &C[m][n][half * 2];
                const float* odd_pair = &C[m][n + 1][half * 2];
                const float mine_x = select(odd, odd_pair[0], even_pair[0]);
                const float mine_y = select(odd, odd_pair[1], even_pair[1]);
                const float got_x = __shfl_xor_sync(~0u, select(odd, even_pair[0], odd_pair[0]), 1);
                const float got_y = __shfl_xor_sync(~0u, select(odd, even_pair[1], odd_pair[1]), 1);
                const float4 sum = make_float4(select(odd, got_x, mine_x), select(odd, got_y, mine_y),
                                               select(odd, mine_x, got_x), select(odd, mine_y, got_y));
                red_add(to + n * 8, sum, (row < rows) & (n * 8 + column < columns));
            }
        }
}
