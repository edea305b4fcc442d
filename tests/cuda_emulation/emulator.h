// Runs the CUDA kernels of fabench_backends/cuda_flash on a CPU, for tests: every thread of a CTA is a fiber, CTAs run one
// after another. Warps run one after another too, each until it waits at __syncthreads: in ascending or, to bring out a
// missing barrier, descending order. Shared memory starts as NaNs and cp.async copies only when it is waited for.
#pragma once
#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900

struct dim { unsigned x = 0, y = 0, z = 0; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T> T bits(auto x) {
    static_assert(sizeof(T) == sizeof(x));
    T y;
    std::memcpy(&y, &x, sizeof(T));
    return y;
}
inline float __int_as_float(int x) { return bits<float>(x); }
inline float __uint_as_float(unsigned x) { return bits<float>(x); }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }

alignas(128) unsigned char smem[256 << 10];

namespace emulator {

struct Copy { unsigned smem; const void* global; bool valid; };

struct Fiber {
    dim thread;
    jmp_buf place;
    ucontext_t start;
    std::unique_ptr<char[]> stack;
    bool started = false, done = false;
    const unsigned* barrier = nullptr;  // generation waited for to change
    unsigned generation = 0, parity = 0;
    std::vector<std::vector<Copy>> groups{1};  // cp.async: committed groups, then the open one
};
struct Barrier { unsigned arrived = 0, generation = 0; };
struct Exchange { uint32_t word[2][32][8]; };

inline std::vector<std::unique_ptr<Fiber>> fibers;
inline std::vector<Barrier> warp_barriers;
inline std::vector<Exchange> exchanges;
inline Barrier block_barrier;
inline Fiber* current;
inline jmp_buf scheduler;
inline dim block, grid;
inline void (*entry)();
inline long bank_conflicts;

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: %s (block %u %u %u, thread %u)\n", what, block.x, block.y, block.z, current ? current->thread.x : 0);
    std::abort();
}
inline unsigned warp() { return current->thread.x / 32; }
inline unsigned lane() { return current->thread.x % 32; }

inline void pause() {
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}
inline void wait(Barrier& barrier, unsigned threads) {
    current->barrier = &barrier.generation, current->generation = barrier.generation;
    if (++barrier.arrived == threads) barrier.arrived = 0, barrier.generation++;
    else pause();
    current->barrier = nullptr;
}
inline void warp_wait() { wait(warp_barriers[warp()], 32); }

// Every lane gives up to 8 words and then sees those of all lanes.
inline uint32_t (*exchange(std::initializer_list<uint32_t> words))[8] {
    auto* all = exchanges[warp()].word[current->parity ^= 1];
    int i = 0;
    for (uint32_t word : words) all[lane()][i++] = word;
    warp_wait();
    return all;
}

inline void trampoline() {
    entry();
    current->done = true;
    _longjmp(scheduler, 1);
}
inline void resume(Fiber& fiber) {
    current = &fiber;
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.start);
}

inline void run_block(unsigned threads, bool descending) {
    constexpr size_t STACK = 256 << 10;
    std::memset(smem, 0xff, sizeof smem);
    block_barrier = {};
    warp_barriers.assign(threads / 32, {});
    exchanges.resize(threads / 32);
    while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned t = 0; t < threads; t++) {
        Fiber& fiber = *fibers[t];
        if (!fiber.stack) fiber.stack = std::make_unique<char[]>(STACK);
        fiber.thread.x = t, fiber.started = fiber.done = false, fiber.barrier = nullptr, fiber.parity = 0, fiber.groups.assign(1, {});
        getcontext(&fiber.start);
        fiber.start.uc_stack = {fiber.stack.get(), 0, STACK};
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, trampoline, 0);
    }
    for (bool running = true; running;) {
        bool moved = false;
        running = false;
        for (unsigned w = 0; w < threads / 32; w++) {
            const unsigned warp_id = descending ? threads / 32 - 1 - w : w;
            for (bool warp_moved = true; warp_moved;) {
                warp_moved = false;
                for (unsigned l = 0; l < 32; l++) {
                    Fiber& fiber = *fibers[warp_id * 32 + l];
                    if (fiber.done || (fiber.barrier && *fiber.barrier == fiber.generation)) continue;
                    resume(fiber);
                    warp_moved = moved = true;
                }
            }
            for (unsigned l = 0; l < 32; l++) running |= !fibers[warp_id * 32 + l]->done;
        }
        if (running && !moved) fail("deadlock: threads wait at different barriers");
    }
}

template <class Kernel> void launch(Kernel kernel, unsigned x, unsigned y, unsigned z, unsigned threads, bool descending) {
    static Kernel stored;
    stored = kernel;
    entry = [] { stored(); };
    grid = {x, y, z};
    bank_conflicts = 0;
    for (block.z = 0; block.z < z; block.z++)
        for (block.y = 0; block.y < y; block.y++)
            for (block.x = 0; block.x < x; block.x++) run_block(threads, descending);
}

}  // namespace emulator

#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::block)
#define gridDim (emulator::grid)

inline void __syncthreads() { emulator::wait(emulator::block_barrier, emulator::warp_barriers.size() * 32); }
inline void __syncwarp() { emulator::warp_wait(); }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { emulator::fail("a turn that never comes"); }
inline float __shfl_xor_sync(unsigned, float x, int mask) {
    return bits<float>(emulator::exchange({bits<uint32_t>(x)})[emulator::lane() ^ mask][0]);
}
inline bool __any_sync(unsigned, bool x) {
    auto* all = emulator::exchange({x});
    for (int l = 0; l < 32; l++)
        if (all[l][0]) return true;
    return false;
}
