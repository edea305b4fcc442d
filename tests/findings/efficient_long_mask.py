"""Memory-efficient attention with a mask of more than 2^32 elements: wrong rows (pytorch#187227, #186075, #162588)."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

N, D = 65544, 64
"""N² passes 2^32, and N is a multiple of 8, which the kernel asks of a mask."""


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        print("not run: needs 24 GB of free memory")
        return 0
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 1, N, D, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(3))
    mask = torch.ones(1, 1, N, N, dtype=torch.bool, device="cuda")
    mask[..., N // 2 :] = False
    try:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            O = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    except RuntimeError as error:
        print(f"not run: {str(error).splitlines()[0][:100]}")
        return 0
    rows = torch.tensor([0, N // 2, N - 9, N - 8, N - 2, N - 1], device="cuda")
    S = q[0, 0, rows].double() @ k[0, 0, : N // 2].double().T * D**-0.5
    right = torch.softmax(S, -1) @ v[0, 0, : N // 2].double()
    error = (O[0, 0, rows].double() - right).norm(dim=-1) / right.norm(dim=-1)
    wrong = [int(r) for r, e in zip(rows, error, strict=True) if not e < 0.05]
    print(
        f"{'REPRODUCED' if wrong else 'right'}: efficient, mask, N={N}: rows {wrong or 'all'} "
        f"{'wrong' if wrong else 'right'}, relative errors {[f'{float(e):.2g}' for e in error]}"
    )
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
