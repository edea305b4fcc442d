"""A backend's kernel patterns know its own kernels, and not those it might silently fall back to."""

from __future__ import annotations

import re

import pytest

from fabench import registry

FLASH_2 = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>"
FLASH_2_BACKWARD = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128>>"
TORCH_FLASH = FLASH_2.replace("flash::", "pytorch_flash::", 1)
FLASH_3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Mainloop>>>"
FLASH_4 = "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensorptrbf16"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1"
EFFICIENT = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)"
FLEX = "triton_tem_fused_flex_attention_0"
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"

OWN = {
    "naive": [GEMM, SOFTMAX, "ampere_sgemm_128x64_tn", "void gemvNSP_kernel<float, float, float, float, 1, 32>"],
    "online": [GEMM],
    "sdpa-math": [GEMM, SOFTMAX],
    "sdpa-flash": [TORCH_FLASH],
    "sdpa-efficient": [EFFICIENT],
    "sdpa-cudnn": [CUDNN],
    "flash-attn": [FLASH_2, FLASH_2_BACKWARD],
    "flash-attn-3": [FLASH_3],
    "flash-attn-4": [FLASH_4],
    "flex": [FLEX],
    "xformers": [FLASH_2, EFFICIENT],
}
FOREIGN = {
    "sdpa-flash": [CUDNN, EFFICIENT, GEMM, SOFTMAX, FLASH_3],
    "sdpa-efficient": [CUDNN, TORCH_FLASH, GEMM, SOFTMAX],
    "sdpa-cudnn": [TORCH_FLASH, EFFICIENT, GEMM, SOFTMAX],
    "flash-attn": [FLASH_3, CUDNN, GEMM, SOFTMAX],
    "flash-attn-3": [FLASH_2, FLASH_4, CUDNN, GEMM, SOFTMAX],
    "flash-attn-4": [FLASH_3, CUDNN, GEMM, SOFTMAX],
    "flex": [TORCH_FLASH, CUDNN, GEMM, SOFTMAX, "triton_per_fused__softmax_add_1"],
    "xformers": [GEMM, SOFTMAX, CUDNN],
}
BACKENDS = registry.shipped()


def matches(backend: str, kernel: str) -> bool:
    return any(re.search(pattern, kernel) for pattern in BACKENDS[backend].facts.kernels)


@pytest.mark.parametrize(("backend", "kernel"), [(b, k) for b, kernels in OWN.items() for k in kernels])
def test_its_own_kernels_are_known(backend: str, kernel: str) -> None:
    assert matches(backend, kernel)


@pytest.mark.parametrize(("backend", "kernel"), [(b, k) for b, kernels in FOREIGN.items() for k in kernels])
def test_anothers_kernels_are_not(backend: str, kernel: str) -> None:
    assert not matches(backend, kernel)
