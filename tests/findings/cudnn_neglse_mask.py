"""All logits near -120 with an attention mask: NaN gradients (pytorch#196678, cudnn-frontend#628 and #1072).

An unmasked zero-filled tail makes exp(0 - LSE) = inf when LSE is far below -88. Nq = Nk with N % 128 = 64 shows it, and
one query with 128 keys. Normal inputs never do.
"""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def gradients(backend, Nq, Nk, masked, d=64):
    generator = torch.Generator("cuda").manual_seed(0)
    draw = lambda n: torch.randn(1, 2, n, d, generator=generator, device="cuda").to(torch.bfloat16)  # noqa: E731
    q, k, v, dO = draw(Nq), draw(Nk), draw(Nk), draw(Nq)
    q[..., 0], k[..., 0] = 1.0, -120.0 * d**0.5
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask = torch.ones(1, 1, Nq, Nk, dtype=torch.bool, device="cuda") if masked else None
    with sdpa_kernel([backend]):
        O = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask)
    return torch.autograd.grad(O, leaves, dO)


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    reproduced = 0
    for name, backend in BACKENDS.items():
        for (Nq, Nk), masked in [((n, n), m) for n in (64, 192, 704) for m in (False, True)] + [((1, 128), False)]:
            case = f"{name} Nq={Nq} Nk={Nk} {'mask' if masked else 'no mask'}"
            try:
                found = gradients(backend, Nq, Nk, masked)
            except RuntimeError as error:
                print(f"not run: {case}: {str(error).splitlines()[0][:80]}")
                continue
            bad = [n for n, g in zip(("dQ", "dK", "dV"), found, strict=True) if not torch.isfinite(g).all()]
            print(f"{'REPRODUCED' if bad else 'right'}: {case}: {', '.join(bad) + ' not finite' if bad else 'finite'}")
            reproduced += bool(bad)
    return min(reproduced, 1)


if __name__ == "__main__":
    sys.exit(main())
