"""Memory-efficient attention with a mask, backward, N > 46340: N² passes 2^31 (pytorch#147585)."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

N, D = 46400, 64


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        print("not run: needs 24 GB of free memory")
        return 0
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, dO = (torch.randn(1, 1, N, D, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask = torch.ones(1, 1, N, N, dtype=torch.bool, device="cuda")
    mask[..., N // 2 :] = False
    try:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            O = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask)
            dQ, _, dV = torch.autograd.grad(O, leaves, dO)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"REPRODUCED: efficient, mask, N={N}, backward: {str(error).splitlines()[0][:100]}")
        return 1
    with torch.no_grad():
        keys, values = k[0, 0, : N // 2].double(), v[0, 0, : N // 2].double()
        rows = torch.tensor([0, N // 2, N - 8, N - 1], device="cuda")
        P = torch.softmax(q[0, 0, rows].double() @ keys.T * D**-0.5, -1)
        dP = dO[0, 0, rows].double() @ values.T
        dS = P * (dP - (P * dP).sum(-1, keepdim=True))
        right = dS @ keys * D**-0.5
        error = (dQ[0, 0, rows].double() - right).norm(dim=-1) / right.norm(dim=-1)
        masked = float(dV[0, 0, N // 2 :].abs().max())
    wrong = bool((~(error < 0.05)).any()) or masked != 0.0
    print(
        f"{'REPRODUCED' if wrong else 'right'}: efficient, mask, N={N}, backward: dQ off by "
        f"{[f'{float(e):.2g}' for e in error]}, largest dV of a masked key {masked:.2g}"
    )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
