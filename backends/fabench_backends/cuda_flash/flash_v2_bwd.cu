// FlashAttention-2 backward (Dao 2023, arXiv 2307.08691, Algorithm 2):  dQ, dK, dV from Q, K, V, dO, LSE and delta.
//
// What changed since v1 (flash_v1_bwd.cu): a CTA owns one tile of keys, not a whole head, so there are enough CTAs to
// fill the card at any batch size; dQ is added up by all CTAs of a head, in the order of the key tiles if
// deterministic.
#include "backward_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) flash_v2_bwd(const __grid_constant__ BackwardParams p) {
    // Key tiles in ascending order: of a causal head the first sees most queries; deterministic turns take this order.
    backward_tile(p, blockIdx.x, blockIdx.y);
}
