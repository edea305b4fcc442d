"""The harness's own proof as a table: which probe kills each mutant, and what it must be called."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner
from click.testing import Result as Ended

from fabench.case import Case
from fabench.cli import INTERRUPTED, main
from fabench.device import Device
from fabench.function_backend import bare
from fabench.parity.diagnose import diagnose
from fabench.parity.examiner import Examiner
from fabench.parity.naming import names
from fabench.parity.subject import Subject
from fabench.parity.trial import ProbeName, Result, Trial

CPU = Device("cpu", "test")
PLAIN = Case(2, 4, 97, 97, 64, kv_heads=2, causal=True, direction="backward")
FULL = dataclasses.replace(PLAIN, causal=False)
WIDE = Case(1, 4, 97, 193, 64, kv_heads=2, causal=True, direction="backward")
TALL = Case(1, 2, 80, 40, 32, causal=True, direction="backward")
WINDOW = Case(2, 2, 97, 97, 64, window=(20, 9), direction="backward")
LONG = Case(1, 2, 257, 257, 64, direction="backward")
GROUP_OF_7 = Case(1, 28, 33, 33, 32, kv_heads=4, direction="backward")
NEGLSE = Case(1, 2, 97, 97, 64, inputs="neglse", direction="backward")


@dataclass(frozen=True)
class Kill:
    """One mutant, the probe that must see it, and words its name must hold (none: it has no name)."""

    mutant: str
    probe: ProbeName
    words: str
    case: Case = PLAIN
    more: tuple[tuple[str, Any], ...] = ()
    """Fields of Trial."""
    shrinks: bool = True
    """To N <= `smallest`."""
    smallest: int = 64

    @property
    def trial(self) -> Trial:
        """What it is tried on: the numeric rule goes first, as in a battery."""
        probes: tuple[ProbeName, ...] = (self.probe,) if self.probe in ("rho", "neglse") else ("rho", self.probe)
        return Trial(self.case, probes, **dict(self.more))


KILLS: tuple[Kill, ...] = (
    Kill("DiagonalExcluded", "mask", "leaves out the diagonal"),
    Kill("NextKeyLeaked", "mask", "lets one key past the diagonal through"),
    Kill("TopLeft", "mask", "aligned top-left instead of bottom-right", WIDE),
    Kill("WindowOneWider", "mask", "one key wider on the left", WINDOW),
    Kill("WindowOneNarrower", "mask", "one key narrower on the right", WINDOW),
    Kill("MaskIgnored", "mask", "ignores its mask"),
    Kill("TilesOnly", "mask", "only by whole tiles", shrinks=True),
    Kill("LastKeyDropped", "mask", "drops the last key", FULL),
    Kill("TileSkippedInLateRows", "mask", "skips key tile 1 of 32", LONG, shrinks=False),
    Kill("UnlimitedSideAsZero", "mask", "(-1) is taken for 0", dataclasses.replace(WINDOW, window=(20, -1))),
    Kill("ZeroSideUnlimited", "mask", "side of 0 keys is taken", dataclasses.replace(WINDOW, window=(20, 0))),
    Kill("WindowNotAligned", "mask", "query's own index", dataclasses.replace(WINDOW, Nk=130)),
    Kill(
        "SingleQueryUnmasked",
        "mask",
        "ignores its mask",
        dataclasses.replace(WIDE, Nq=1, alignment="top_left"),
    ),
    Kill("FirstNqKeys", "mask", "only the first Nq of the Nk keys", dataclasses.replace(WIDE, causal=False)),
    Kill("LastKeyOfTiles", "mask", "last key of every tile of 32", FULL),
    Kill("EmptyRowsNan", "mask", "NaN (0/0) for queries without a key", TALL),
    Kill("EpsilonInDivision", "rho", "a division by l + 0.001", dataclasses.replace(FULL, dtype="fp32")),
    Kill("LastKeyTwice", "count", "counts the last key twice", FULL),
    Kill("FirstKeyTwice", "count", "counts the first key twice", FULL),
    Kill("TilesOverlap", "count", "tiles of 32 overlap by one key", FULL),
    Kill("PadKeysCounted", "count", "counts the 31 keys of padding to a multiple of 32", FULL),
    Kill("TailRead", "guard", "outside its tensors", FULL),
    Kill("FirstTileClamped", "neglse", "maximum starts at 0", dataclasses.replace(NEGLSE, causal=True)),
    Kill("FiniteSentinel", "mask", "a finite number in the place of -inf", TALL),
    Kill("NoRescale", "rho", "rescales neither O nor l", FULL),
    Kill("NoRescaleOfO", "rho", "does not rescale O", FULL),
    Kill("NoScale", "rho", "without the 1/sqrt(d) scale"),
    Kill("ScaleFivePercent", "rho", "1.05 times the scale"),
    Kill("SecondBatchEntryScaled", "rho", "1.03 times the scale", dataclasses.replace(FULL, dtype="fp16")),
    Kill("Base2Softmax", "rho", "not multiplied by log2 e"),
    Kill("ScaleRoundedInQ", "rho", "scale folded into q", dataclasses.replace(FULL, d=80, inputs="std6")),
    Kill("SoftcapForgotten", "rho", "without the softcap", dataclasses.replace(FULL, softcap=5.0, inputs="std3")),
    Kill("MaskBeforeSoftcap", "mask", "mask is applied before the softcap", dataclasses.replace(PLAIN, softcap=5.0)),
    Kill("ScaleInBf16", "rho", "scale is rounded to bf16", dataclasses.replace(FULL, d=80, dtype="fp32")),
    Kill("ScaleOfPaddedD", "rho", "1/sqrt(d) of a d padded to a power of two", dataclasses.replace(FULL, d=80)),
    Kill("Fp8Weights", "rho", "fp8 e4m3"),
    Kill("WeightsInBf16", "rho", "P rounded to bf16", dataclasses.replace(FULL, dtype="fp32")),
    Kill("Fp16Accumulator", "rho", "fp16", dataclasses.replace(FULL, dtype="fp32")),
    Kill("Bf16Accumulator", "rho", "accumulated in bf16", dataclasses.replace(LONG, dtype="fp16")),
    Kill("LowPrecisionScores", "rho", "rounded to bf16", dataclasses.replace(FULL, inputs="std3")),
    Kill("Tf32", "rho", "tf32", dataclasses.replace(FULL, dtype="fp32")),
    Kill("MaximumFromZero", "neglse", "maximum starts at 0", NEGLSE),
    Kill("NotDivided", "rho", "not divided by l", FULL),
    Kill("HeadMapTiled", "addr", "kv head = h % kv_heads"),
    Kill("HeadZeroForAll", "addr", "kv head 0 for all heads"),
    Kill("BatchStrideZero", "addr", "batch entry 0 for all"),
    Kill("DimsBeyond64Ignored", "rho", "only the first 64 of 128", dataclasses.replace(PLAIN, d=128)),
    Kill("RowsShifted", "addr", "rows shifted by 1"),
    Kill("LastRowsStale", "poison", "never wrote", FULL, smallest=65),  # a whole tile of 64 rows, and one row more
    Kill("FragmentTenPercent", "rho", "1.1 times the right value"),
    Kill("OnePercentOfElements", "rho", "scattered elements", FULL),
    Kill("StridesIgnored", "addr", "", dataclasses.replace(FULL, layout="bshd")),
    Kill("ValuesWithStridesOfK", "addr", "", FULL, (("order", "mixed"),)),
    Kill("OffsetIgnored", "addr", "", FULL, (("order", "offset8"),)),
    Kill("GradientBatchDense", "rho", "", FULL, (("gradient_order", "sliced"),)),
    Kill("GroupAsShift", "addr", "takes the 3 heads of a group for 2", dataclasses.replace(GROUP_OF_7, heads=12)),
    Kill("GroupIsKvHeads", "addr", "kv head = h // kv_heads", GROUP_OF_7),
    Kill("ChannelsAfterLast16", "rho", "after the last whole 16", dataclasses.replace(FULL, d=40)),
    Kill("NextKeysValue", "addr", "next key's weight", FULL),
    Kill("LseBase2", "count", "in base 2", FULL),
    Kill("LsePlusInf", "count", "+inf for", TALL),
    Kill("LseFiniteWhenEmpty", "count", "finite for a query that attends to no key", TALL),
    Kill("LseNegated", "rho", "negated", FULL),
    Kill("LseMaximumOnly", "rho", "the maximum m alone, without ln l", FULL),
    Kill("LseInTwoBases", "rho", "m + ln l with m in base 2", FULL),
    Kill("LseOfRawProducts", "rho", "LSE of the scores before they are scaled", FULL),
    Kill("LseOverScale", "count", "LSE divided by the scale", FULL),
    Kill("GradientStridesIgnored", "rho", "dO as if it were contiguous", FULL, (("gradient_order", "transposed"),)),
    Kill("DeltaOmitted", "rho", "without delta", FULL),
    Kill("BackwardUnmasked", "mask", "backward without the mask"),
    Kill("DkWithoutScale", "rho", "dK without the scale", FULL),
    Kill("GivenScaleForgotten", "rho", "not by the scale it was given", dataclasses.replace(FULL, scale=0.3)),
    Kill("DqWithoutTile", "mask", "dQ without key tile 1 of 32", FULL),
    Kill("LastTileOfDv", "mask", "dK and dV of key tile 3 of 32", FULL),
    Kill("DqTwice", "rho", "dQ accumulated twice", FULL),
    Kill("LastHeadOfGroup", "rho", "only the last query head", FULL),
    Kill("BackwardTailUnmasked", "neglse", "", NEGLSE),
    Kill("SoftcapSlopeForgotten", "rho", "derivative of the softcap", dataclasses.replace(FULL, softcap=2.0)),
    Kill("GradientsDoubledWithLse", "rho", "2 times the right value", FULL),
    Kill("InputOverwritten", "mutate", "writes into its inputs", FULL),
    Kill("WritesPastItsOutput", "guard", "outside its tensors", FULL),
    Kill("Empty", "poison", "never wrote", FULL),
    Kill("WorkspaceNotZeroed", "poison", "never wrote", FULL),
    Kill("CachedFirstResult", "stale", "remembers an earlier call", FULL),
    Kill("SameMemory", "stale", "a later call overwrites an earlier answer", FULL),
    Kill("LastForwardRemembered", "stale", "what the last forward pass left behind", FULL),
    Kill("Racy", "repeat", "equal calls give different answers", FULL),
    Kill("KeysCachedByAddress", "stale", "remembers an earlier call", FULL),
    Kill("ScaledInPlaceAndBack", "mutate", "writes into its inputs", FULL),
    Kill("WritesLate", "stale", "its answer changes after the call", FULL),
    Kill("NanLaundered", "nan", "NaN is lost: ", FULL),
    Kill("NanShared", "nan", "NaN spreads: ", FULL),
    Kill("Zeros", "rho", "0 throughout", FULL),
    Kill("Constant", "rho", "constant 0.75", FULL),
    Kill("takes_any_heads", "refusal", "calls that have no answer", dataclasses.replace(FULL, heads=2)),
    Kill("returns_none", "type", "got None", FULL),
    Kill("returns_a_triple", "type", "got a tuple of 3", FULL),
    Kill("returns_other_shape", "type", "must have shape", FULL),
    Kill("returns_other_dtype", "type", "must have dtype", FULL),
    Kill("returns_its_input", "type", "view of the input q", FULL),
    Kill("returns_a_subclass", "type", "plain torch.Tensor", dataclasses.replace(FULL, heads=2)),
    Kill("exits", "rho", "sys.exit", FULL),
    Kill("raises_late", "rho", "the launch failed", dataclasses.replace(FULL, heads=2)),
)
IN_PROCESSES_OF_THEIR_OWN = ("aborts_in_fp32", "hangs_at_97")
"""Mutants that only a worker survives."""


def examine(kernel: Any, name: str, trial: Trial) -> list[Result]:
    """The results of one trial in this process, diagnosed."""
    return list(Examiner(Subject(bare(kernel, name), CPU), diagnose).run(trial))


def called(results: Sequence[Result]) -> str:
    """What the results together call the bug: names, else the messages."""
    found = names(results)
    return "; ".join(n.sentence for n in found) if found else "; ".join(r.message for r in results if r.bad)


def command(*arguments: str) -> Ended:
    """`fabench ARGUMENTS` in this process.

    The command takes signals for a wish to end, and pytest does not hear of them: a proof that `timeout` or `kill` ends
    would go on, and count the mutant of that moment as one that was not found. What interrupts it interrupts pytest.
    """
    done = CliRunner().invoke(main, arguments)
    if done.exit_code == INTERRUPTED:
        raise KeyboardInterrupt(done.output[-300:])
    return done
