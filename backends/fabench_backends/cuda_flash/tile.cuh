// A tile [rows, D] of 16-bit elements in shared memory, swizzled, and its copies from and to global memory.
//
// A row is D / 8 chunks of 16 bytes. Chunk c of row r is stored at position c ^ s(r), so that the eight rows which one
// phase of ldmatrix reads at the same c lie in eight different groups of four banks:
//   D % 64 == 0: a row fills whole 128-byte lines, s(r) = r & 7 spreads eight rows over the eight groups of a line;
//   else (D = 32, 96): two rows differ by half a line already, s(r) = (r >> 1) & 3 spreads the rest.
#pragma once
#include "ptx.cuh"

template <int D> __device__ __forceinline__ int swizzle(int row) { return D % 64 == 0 ? row & 7 : (row >> 1) & 3; }

// Byte offset of a chunk in the tile.
template <int D> __device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
    return row * (D * 2) + ((chunk ^ swizzle<D>(row)) << 4);
}

// A lane's addresses for ldmatrix.x4 in a tile (128-byte aligned): the 16x16 blocks of COLUMNS columns from column0 on,
// block k at column0 + 16k, in rows that start at row0 plus a multiple of 8. The four 8x8 matrices of a block come in
// the order in which mma wants its operand, so that no register is moved: down the left half and then the right, or
// across the upper half and then the lower. Rows and stages are immediates or uniform. Going from block to block flips
// the bits of k in the chunk, an exclusive or, if column0 (a multiple of COLUMNS) has none of these bits; else each k
// in a period of the swizzle has an address of its own.
enum Order { DOWN, ACROSS };
template <int D, Order ORDER, int COLUMNS = D> struct Blocks {
    static constexpr int PERIOD = D % 64 == 0 ? 4 : 2;
    static constexpr bool FLIP = COLUMNS % (16 * PERIOD) == 0 || (COLUMNS & (COLUMNS - 1)) == 0;
    u32 address[FLIP ? 1 : PERIOD];
    __device__ __forceinline__ Blocks(u32 tile, int row0, int column0, u32 lane_id) {
        const int row = ORDER == DOWN ? lane_id % 16 : lane_id / 16 * 8 + lane_id % 8;
        const int chunk = ORDER == DOWN ? lane_id / 16 : lane_id / 8 % 2;
        for (int k = 0; k < (FLIP ? 1 : PERIOD); k++)
            address[k] = tile + chunk_offset<D>(row0 + row, column0 / 8 + 2 * k + chunk);
    }
    __device__ __forceinline__ u32 at(int k, int rows, u32 bytes) const {
        const u32 column = FLIP ? address[0] ^ (k % PERIOD * 32) : address[k % PERIOD];
        return column + bytes + (k / PERIOD) * (PERIOD * 32) + rows * (D * 2);
    }
    // A[16, 16] or B[16, 16] from a tile of them; b[0], b[1] hold the left eight columns of B, b[2], b[3] the right.
    __device__ __forceinline__ void load_A(u32 (&a)[4], int k, int rows, u32 bytes) const {
        static_assert(ORDER == DOWN);
        ldmatrix_x4(a, at(k, rows, bytes));
    }
    __device__ __forceinline__ void load_B(u32 (&b)[4], int k, int rows, u32 bytes) const {
        static_assert(ORDER == DOWN);
        ldmatrix_x4_trans(b, at(k, rows, bytes));
    }
    // The same from tiles that hold A^T or B^T.
    __device__ __forceinline__ void load_A_trans(u32 (&a)[4], int k, int rows, u32 bytes) const {
        static_assert(ORDER == ACROSS);
        ldmatrix_x4_trans(a, at(k, rows, bytes));
    }
    __device__ __forceinline__ void load_B_trans(u32 (&b)[4], int k, int rows, u32 bytes) const {
        static_assert(ORDER == ACROSS);
        ldmatrix_x4(b, at(k, rows, bytes));
    }
};

// One thread's part in copying tiles [ROWS, D]: fixed columns, rows that advance by ROWS_PER_PASS.
template <int D, int ROWS, int THREADS> struct TileCopy {
    static constexpr int WIDE = D % 64 == 0 ? 8 : 4;  // chunks of a row that neighbouring threads take together
    static constexpr int ROWS_PER_PASS = THREADS / WIDE;
    static constexpr int PASSES = ROWS / ROWS_PER_PASS;
    static constexpr int COLUMN_STEPS = D / (8 * WIDE);
    static_assert(THREADS % WIDE == 0 && ROWS % ROWS_PER_PASS == 0, "threads must cover whole rows");
    static_assert(ROWS_PER_PASS % 8 == 0, "a pass must keep the swizzle of a thread's row");

    int row, column;  // first row, first column (elements)
    u32 offset;       // first byte in the tile
    __device__ __forceinline__ TileCopy(u32 thread) {
        row = thread / WIDE;
        column = thread % WIDE * 8;
        offset = chunk_offset<D>(row, thread % WIDE);
    }
    // tile[r, c] = source[r * stride + c] for r < rows and c < columns, else 0. Asynchronous.
    __device__ __forceinline__ void load(u32 tile, const u16* source, i64 stride, int rows, int columns) const {
        const u16* thread_source = source + row * stride + column;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            bool row_valid = row + pass * ROWS_PER_PASS < rows;
#pragma unroll
            for (int step = 0; step < COLUMN_STEPS; step++)
                cp_async_16(tile + offset + pass * ROWS_PER_PASS * D * 2 + step * WIDE * 16,
                            thread_source + step * WIDE * 8, row_valid && column + step * WIDE * 8 < columns);
            thread_source += ROWS_PER_PASS * stride;
        }
    }
};
