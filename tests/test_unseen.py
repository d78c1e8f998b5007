"""Historic faults that no check was written for: what is seen of them stays seen."""

from __future__ import annotations

import msgspec
import pytest

from tests.blind import Measured
from tests.unseen import PROGRAMS, is_seen, marked

#: What no check can see by now, as docs/limits.md says.
UNSEEN = [
    "ascend_13902",
    "ascend_9687",
    "atom_1466",
    "atom_1956",
    "atom_2248",  # an input that each step creates, between two graphs that nobody declares
    "atom_2267",  # the warmup of a capture, which runs no fill
    "earth2studio_101",
    "fastdeploy_3197",  # a table that is read as a whole, in a dict, which can be named since
    "fastvideo_1650",
    "fbgemm_4367",  # memory that was created without a device, and is the device's
    "flashinfer_2690",  # a mask that an earlier plan left, which the contract cannot call rewritten
    "flashinfer_4827",  # a workspace in its module, which a contract can name since
    "flashinfer_5176",  # a mask that the plan leaves out altogether
    "gaudi_589",
    "ktransformers_2174",  # memory that a graph keeps by its address alone
    "lmcache_2706",  # a blocking upload before the load waits for the stream that it races with
    "megatron_4609",
    "megatron_4800",
    "megatron_4982",
    "megatron_6207",  # streams that are first used in a backward pass, and memory behind it
    "megatron_6407",  # streams that are created in a backward pass
    "megatron_6565",
    "megatron_833",  # streams that hooks of a backward pass use, and a read behind it
    "mini_sglang_142",  # pages, which a request goes on reading that no longer has them
    "mini_sglang_94fe255",  # a view that a tree keeps of a row which goes to somebody else
    "pytorch_180665",  # reported, at the first line of the statement whose second one is marked
    "pytorch_91096",  # reported, in the function that a marked line calls
    "sdnext_28eeb0",
    "sdnext_68f3c2",
    "sglang_26534",  # a read by a wrong number, of a table that is read many times
    "sglang_27664",  # reported, where the function is defined whose call is marked
    "sglang_29354",
    "sglang_29449",  # slots of a request that has left, which a batch may have for one step
    "sglang_30147",  # a row that its former owner uses, which a contract can say since
    "sglang_32188",
    "sglang_32288",
    "sglang_32896",
    "sglang_33016",
    "sglang_34076",  # no memory of it is given to a device
    "sglang_37975",  # offsets that no fill writes, named in `captured` alone
    "sglang_40044",  # reported where the slot is handed out, whose line is not marked
    "sglang_40621",  # each copy is waited for before it is read, as the program runs
    "tgi_2711",  # reported, where the rows are read that were written over
    "tokenspeed_376",
    "tokenspeed_969",
    "torchrec_4421",  # no stream is used, so that none is followed
    "transformer_engine_2547",
    "trtllm_13592",  # a token of the row's own request, of a step before
    "trtllm_16925",  # a map that is right for the layout before: nobody says that it changed
    "trtllm_17110",  # a paged cache, which is no relay
    "trtllm_17619",  # a counter that is zeroed, and never set, where a request comes
    "trtllm_18769",  # schedules that are planned again only where page counts change
    "vllm_29288",  # what NumPy writes is reported at the next copy
    "vllm_35157",  # a block that a resumed request never wrote: its blocks have no names
    "vllm_36013",
    "vllm_36070",  # the contract names an object without a tensor, which is reported as an error
    "vllm_42444",
    "vllm_42481",
    "vllm_43464",
    "vllm_43931",  # a row of a request that moved to another one, which no contract can say
    "vllm_47725",  # slots that are found by a search, which no path can say
    "vllm_48419",  # two rows of a host tensor that are swapped through views
    "vllm_49757",  # tables of the last batch, which an idle one takes
    "vllm_52115",  # seen once the contract names `outputs`, a key that is younger
    "vllm_52942",  # an older state of the row's own request
    "vllm_53520",
    "vllm_55341",  # an arena in its module, which a contract can name since
    "vllm_55506",  # a table that a batch's rows are gathered into, which no contract can name
    "vllm_56524",  # no relay can be declared
    "vllm_56734",  # rows of requests that are gone, which nobody has since
    "vllm_ascend_13864",  # counts of requests that have swapped places since
    "vllm_ascend_14236",
    "vllm_ascend_16179",  # a graph of other buffers than those that are filled
    "vllm_ascend_16428",  # what NumPy writes is reported at the next wait
    "vllm_ascend_8749",
    "vllm_omni_2746",  # states of requests that are objects, and no rows
    "vllm_omni_4219",  # reported, where the rows are read that were lost
    "vllm_omni_4525",  # an output that is cut to another length than the input was padded from
    "vllm_omni_6587",  # memory that a graph keeps by its address alone
    "vllm_omni_6654",  # a read for a request that is gone, of a buffer that is read many times
]
#: Reported where a thread of the host is slower than another one, which is as it comes.
BY_CHANCE = ["ascend_13120", "torchtitan_1783"]
#: Faults that a fixed form has as well, and its writer did not mean: memory that the first step
#: takes on a side stream, host memory that the host computes with on a stream, in the place of a
#: thread, and indices that are freed while another stream may still write by them; slots of which
#: some columns are masked, as no contract can say; and rows that are read to be dropped.
OF_THE_FIX = {
    "mini_sglang_142": {"FR402"},
    "mstar_10f008": {"FR402"},
    "ktransformers_1646": {"FR404"},
    "mini_sglang_94fe255": {"FR402"},
    "trtllm_16548": {"FR101"},
    "vllm_omni_7877": {"FR101", "FR104"},
}


@pytest.mark.parametrize("name", PROGRAMS.names())
def test_an_unseen_fault_is_reported_if_it_can_be_and_its_fix_is_not(name: str) -> None:
    bad, good = PROGRAMS.here(name, "bad"), PROGRAMS.here(name, "good")
    assert {one.code for one in good.findings} == OF_THE_FIX.get(name, set())
    assert not good.problems
    if name not in BY_CHANCE:
        fixed = msgspec.structs.replace(good, findings=())
        assert is_seen(name, Measured("", bad, fixed)) == (name not in UNSEEN)


def test_each_case_was_measured_once_and_says_where_its_fault_is() -> None:
    assert set(PROGRAMS.records()) == set(PROGRAMS.names())
    assert all(marked(name) and PROGRAMS.case(name).thread for name in PROGRAMS.names())
