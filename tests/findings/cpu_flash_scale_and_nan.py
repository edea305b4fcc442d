"""torch's flash attention on a CPU: a causal mask times a scale <= 0, and NaN in short rows (pytorch#141128)."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def sdpa(q, k, v, **keywords):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **keywords)


def main():
    reproduced = 0
    for dtype in (torch.float32, torch.bfloat16):
        for scale in (0.0, -0.1):
            for N in (33, 64):
                generator = torch.Generator().manual_seed(0)
                q, k, v = (torch.randn(1, 1, N, 16, generator=generator).to(dtype) for _ in range(3))
                O = sdpa(q, k, v, is_causal=True, scale=scale)
                nan, zero = int(O.isnan().any(-1).sum()), int((O == 0).all(-1).sum())
                bad = bool(nan or zero)
                words = f"{nan} of {N} rows NaN, {zero} rows 0"
                print(f"{'REPRODUCED' if bad else 'right'}: CPU flash {dtype}, causal, scale={scale}, N={N}: {words}")
                reproduced += bad
    lost = []
    for N in range(1, 33):
        q, k, v = (torch.randn(1, 1, N, 16, generator=torch.Generator().manual_seed(N)) for _ in range(3))
        q[0, 0, 0, 0] = torch.nan
        if not sdpa(q, k, v)[0, 0, 0].isnan().all():
            lost.append(N)
    print(
        f"{'REPRODUCED' if lost else 'right'}: CPU flash, NaN in q: lost (O = 0) for Nk in {lost or 'none of 1 to 32'}"
    )
    return int(bool(reproduced or lost))


if __name__ == "__main__":
    sys.exit(main())
