"""Is the dropout mask of the backward that of the forward (pytorch#187227)? V = 1 extracts one, dV the other."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}
P = 0.3


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    reproduced = 0
    for name, backend in BACKENDS.items():
        for N in (64, 128):
            q = torch.zeros(1, 2, N, N, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            k = torch.zeros_like(q).detach().requires_grad_()
            v = torch.eye(N, device="cuda", dtype=torch.bfloat16).expand(1, 2, N, N).contiguous().requires_grad_()
            torch.manual_seed(1)
            try:
                with sdpa_kernel([backend]):
                    O = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=P)
                dO = torch.eye(N, device="cuda", dtype=torch.bfloat16).expand(1, 2, N, N).contiguous()
                (dV,) = torch.autograd.grad(O, (v,), dO)
            except RuntimeError as error:
                print(f"not run: {name} N={N}: {str(error).splitlines()[0][:80]}")
                continue
            forward, backward = O != 0, (dV != 0).mT  # O = P∘mask, dV = (P∘mask)ᵀ
            differ = int((forward != backward).sum())
            kept = float(forward.double().mean())
            print(
                f"{'REPRODUCED' if differ else 'right'}: {name} dropout {P}, N={N}: {differ} of {forward.numel()} "
                f"mask elements differ, {kept:.3f} kept"
            )
            reproduced += bool(differ)
    return min(reproduced, 1)


if __name__ == "__main__":
    sys.exit(main())
