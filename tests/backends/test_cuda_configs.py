"""What is compiled: few enough configurations, one for every supported call, within each architecture's limits."""

from __future__ import annotations

import re

import pytest

from fabench_backends.cuda_flash import build, configs, params

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def test_there_are_at_most_120_configurations_on_hopper() -> None:
    assert len(configs.configs("sm_90a")) <= 120


@pytest.mark.parametrize("arch", ARCHS)
def test_every_configuration_has_a_name_and_a_source_and_fits_the_architecture(arch: str) -> None:
    found = configs.configs(arch)
    assert len({c.name for c in found}) == len(found)
    for config in found:
        assert (build.FOLDER / config.source).exists()
        assert config.smem_bytes <= configs.smem_limit(arch)
        assert config.tile.threads <= 1024


@pytest.mark.parametrize("arch", ARCHS)
def test_every_supported_call_has_a_configuration(arch: str) -> None:
    names = {c.name for c in configs.configs(arch)}
    for d in range(8, configs.max_d(arch) + 1, 8):
        for mask in configs.MASKS:
            assert configs.config("flash_v2_fwd", d, "bf16", mask, arch).d >= d
            assert configs.config("flash_v2_bwd", d, "fp16", mask, arch).name in names
        if d <= 128:
            assert configs.config("flash_v1_fwd", d, "bf16", "band", arch).name in names


@pytest.mark.parametrize(
    "struct", ["ForwardParams", "BackwardParams", "PrepareParams", "FinishParams", "V1ForwardParams"]
)
def test_the_structs_of_host_and_device_have_the_same_fields_in_the_same_order(struct: str) -> None:
    text = re.sub(r"//.*", "", (build.FOLDER / "params.cuh").read_text())
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\}};", text, re.DOTALL)
    declared = []
    for line in body.split(";"):
        if match := re.match(r"\s*((?:const )?\w+\*?) (.*)", line.strip(), re.DOTALL):
            declared += [(name.strip(), match[1]) for name in match[2].split(",")]
    kinds = {"i64": "c_long", "int": "c_int", "float": "c_float"}
    expected = [(name, "c_void_p" if kind.endswith("*") else kinds[kind]) for name, kind in declared]
    assert [(name, kind.__name__) for name, kind in getattr(params, struct)._fields_] == expected
