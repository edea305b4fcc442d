// FlashAttention backward (Dao et al. 2022, arXiv 2205.14135, Algorithm 4):  dQ, dK, dV from Q, K, V, dO, LSE, delta.
//
// The loops are the paper's: one CTA a head, the outer loop over blocks of K and V with dK and dV on chip, the inner
// one over blocks of Q; dQ goes to global memory at every inner step. No other CTA touches the head, so the sums have
// one order. With grouped queries a CTA takes one kv head and all heads that share it. The inner step is v2's
// (backward_tile.cuh), so that the two differ only in who owns what.
#include "backward_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) flash_v1_bwd(const __grid_constant__ BackwardParams p) {
    const int tiles = (p.Nk + BLOCK_KV - 1) / BLOCK_KV;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        if (tile > 0) __syncthreads();  // every warp has left the shared memory of the last tile
        backward_tile(p, read_block_id(), tile);
    }
}
