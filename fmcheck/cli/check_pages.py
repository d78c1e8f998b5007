"""The run-time checks explained: what each means, what it cannot see, how to fix it."""

from __future__ import annotations

from dataclasses import dataclass

from fmcheck.finding import ADVISORY, CHECKS

_PULL = "https://github.com/{}/pull/{}"


@dataclass(frozen=True, slots=True)
class CheckPage:
    """A check in words. `seen_in` are public pull requests, as `owner/name#number`.

    `means` says what is wrong when it speaks, `how` what it looks at, `unseen` what it cannot see,
    `fix` what to do.
    """

    means: str
    how: str
    unseen: str
    fix: str
    seen_in: tuple[str, ...]


PAGES = {
    "FR101": CheckPage(
        means="A relay row was gathered before anything was written to it, since the buffer was "
        "created or the row allocated. The step continues with leftover memory: a token that no "
        "step sampled.",
        how="Every declared buffer starts poisoned (-1, or a NaN reserved by fmcheck), and a row "
        "that is allocated to another owner is poisoned again. A gather that returns poison is the "
        "bug. On a CPU the poison is kept beside the memory, so that every read returns the "
        "engine's own values. A tensor that is assigned to the attribute later is poisoned where "
        "it is filled with one number that marks an empty row (0, -1, NaN, infinity, what `valid` "
        "forbids), or where it is written before it is gathered; any other tensor counts as "
        "holding values.",
        unseen="A row written by a kernel that the contract does not name counts as written by "
        "untracked code and is not reported; on a CPU a value equal to the previous one is not "
        "recognized as a write. Reads through slices and single indices are peeks. Accesses inside "
        "a trace or a transform (`torch.func`, `make_fx`, `torch.export`, `torch.jit.trace`) are "
        "counted as not followed.",
        fix="Write the row before the step that reads it: look for the branch that skips the "
        "stash, such as an early return, or a batch that joins without passing through it. If a "
        "declared kernel skips the row, add the condition to its `rows_where`.",
        seen_in=("sgl-project/sglang#26108",),
    ),
    "FR102": CheckPage(
        means="A relay row was gathered twice with no write in between. The second step starts "
        "from the first step's token.",
        how="A gather consumes: the row is poisoned again after the read, and the next gather "
        "without a write returns the poison.",
        unseen="A second use of the value that the first gather returned is not a gather. Methods "
        "that the contract lists in `peeks` never consume.",
        fix="Resolve a batch once and pass the result on; or stash again before the retry. If "
        "the method only looks, list it in the relay's `peeks`; if a kernel skips rows, say which "
        "in its `rows_where`.",
        seen_in=("sgl-project/sglang#26108", "sgl-project/sglang#25862"),
    ),
    "FR103": CheckPage(
        means="A relay row was overwritten before its value was gathered: a token or a length is "
        "lost, or two steps write where one should.",
        how="The ledger records for each row who wrote it and whether it was read since. A write "
        "by the same owner over a value that was never gathered is the bug.",
        unseen="Needs `[[owners]]`: without them it is unknown whether the row has gone to another "
        "request. Buffers whose `overwrite` is `always` are not checked.",
        fix="Gather before the next write, or remove the second write. Where values are "
        "dropped by design, say so: `overwrite` is `always` or `until gathered`.",
        seen_in=("sgl-project/sglang#13713",),
    ),
    "FR104": CheckPage(
        means="A relay row was gathered by one request, but last written by the request that had "
        "the row before: one answer continues from another request's token.",
        how="The functions of `[[owners]]` show when a row goes to another request; its generation "
        "grows, and a value of an older generation is stale. What such a function writes itself is "
        "its new owner's, or a reset.",
        unseen="Needs `[[owners]]`. A change of owner that Python does not see is missed.",
        fix="Write the row for its new owner before the first gather, and free a row only "
        "when no launched step can still write it. In a batch whose rows move, move, swap and "
        "clear each buffer with its request.",
        seen_in=("sgl-project/sglang#25862", "sgl-project/sglang-jax#1504"),
    ),
    "FR105": CheckPage(
        means="A value was written to a relay row that the contract calls invalid: a negative "
        "token, a length of 0.",
        how="Each write is checked against the buffer's `valid` and reported there, -1 included; "
        "the gather that returns the value is not reported again. One number in the source, rather "
        "than a tensor of values, may mark that a row is empty: -1, and any number over a row that "
        "was gathered or over the whole buffer. Such a mark is reported if it is gathered.",
        unseen="Buffers without a `valid`. What untracked code wrote is reported when it is "
        "gathered.",
        fix="Fix the code that produced the value, or correct `valid` if the engine may write it.",
        seen_in=("sgl-project/sglang#26108",),
    ),
    "FR106": CheckPage(
        means=(
            "A row of `sink_rows` was allocated to a request. Padded batch entries point there: "
            "each padded replay reads and writes what is now a request's row. Or a negative "
            "number, a placeholder for no row, was freed like a row and has now been allocated: "
            "it indexes the last row, which is another request's."
        ),
        how=(
            "What the functions of `[[owners]]` allocate is checked against the `sink_rows` of "
            "the relays that share the pool, and against the negative numbers that they freed."
        ),
        unseen="A negative number that is allocated by itself, which may mean that there is no "
        "row. A pool whose relays have not been created yet. Without `sink_rows`, row 0 is taken "
        "for the sink until it is allocated, and from then on for a request's row.",
        fix=(
            "Leave the sink out of the pool's free rows: `range(1, size + 1)`. If the engine "
            "has no sink, set `sink_rows = []`. Free only what is a row: `ids[ids >= 0]`."
        ),
        seen_in=("sgl-project/sglang#25862", "sgl-project/sglang#40044"),
    ),
    "FR107": CheckPage(
        means=(
            "A row was allocated to a request while another one still held it: both write their "
            "tokens there, and each reads the other's."
        ),
        how=(
            "The functions of `[[owners]]` show who holds which row. A row that goes to another "
            "owner without having been freed by a declared function is the bug."
        ),
        unseen=(
            "Owners without a name; contracts that declare no function that frees rows; a row "
            "that an earlier test left allocated in a pool that no `pool` key distinguishes."
        ),
        fix=(
            "Remove the row from the free list when it is allocated, and put it back once. If "
            "another function frees rows as well, such as one that clears the pool, declare it "
            'in `[[owners]]` with `does = "takes back"`; if the rows are those of two pools, '
            "distinguish them with `pool`."
        ),
        seen_in=("sgl-project/sglang#17850",),
    ),
    "FR108": CheckPage(
        means=(
            "A row was freed twice with no allocation in between. It is now in the pool twice, "
            "and the next two requests share it."
        ),
        how=(
            "A row is freed that was allocated once and has no owner. A declared function that "
            "calls another one counts as one."
        ),
        unseen="A row whose allocation fmcheck did not see.",
        fix=(
            "Forget the row when it is freed, as by `req.row = None`. If the function does "
            "nothing for a row without an owner, set `idempotent = true`."
        ),
        seen_in=("sgl-project/sglang#17850",),
    ),
    "FR109": CheckPage(
        means=(
            "Values were written to a row that no request held: by a wrong index, or for a "
            "request that finished long ago. The next owner of the row may read them."
        ),
        how=(
            "A write by an index is checked against the owners: a row that was never allocated, "
            "or that was freed two or more steps ago. A step in flight may still write for an "
            "owner that has just finished."
        ),
        unseen=(
            "Needs `[[owners]]`, and `[[steps]]` for freed rows. Slices, whole buffers, sinks and "
            "constants are not checked. On a device, what a graph replays keeps the step of its "
            "capture, so that it may write freed rows."
        ),
        fix=(
            "Check how the index is computed: padded entries point at the sink, and a finished "
            "request leaves the batch."
        ),
        seen_in=("sgl-project/sglang#18803",),
    ),
    "FR110": CheckPage(
        means="One write named a row twice, with two different values. Which one stays is not "
        "defined; on a GPU it changes from run to run.",
        how="The row numbers of a write by an index are compared with each other, and the values "
        "of those that are named twice.",
        unseen=(
            "Kernels, whose values are not seen; masks, and indices of several dimensions; on a "
            "device, a subscript of several items (`x[rows, 2]`), and values that are not "
            "contiguous or of another dtype than the buffer. Sinks, and rows that get the same "
            "value each time, are not reported."
        ),
        fix="Point padded entries at the sink, in place of a repeated last row; or write each "
        "row once.",
        seen_in=("sgl-project/sglang#13713",),
    ),
    "FR111": CheckPage(
        means="A row was used for a request that does not hold it: it kept the number of its row "
        "beyond the free, or a batch's list of rows and its list of requests do not match. What "
        "lies there is another request's.",
        how='A function of `[[owners]]` with `does = "uses"` says which rows it takes to be '
        "whose. Reported is a row that another request holds, held last, or that was freed two or "
        "more steps ago: a step in flight may still use a row for the owner that has just "
        'finished. One with `does = "serves"` says whose batch it runs. While it runs, a write of '
        "rows that an index picks is reported if it reaches a row that another request holds, or "
        "held last, and so is a gather that consumes: padded entries point at the sink. Without "
        "either, a view of one row (`buf[row]`) that was taken while a request held the row is "
        "reported when it is read or written after the row has gone to another one.",
        unseen="Functions that the contract does not name. Without `owner` on both sides, a row "
        "that has gone to another request; without `[[steps]]`, a freed row without a new owner. "
        "Rows that were never allocated in this test, and negative numbers. Of a batch: slices, "
        'whole buffers, constants, gathers of a buffer with `reads = "many"`, accesses on other '
        "threads, and all accesses on a device other than the CPU. Views that no number picked "
        "(`buf[row : row + 1]`), and those of NumPy.",
        fix="Look the row up where it is used, in place of keeping it or a view of it, or forget "
        "it with the free. Change a batch's rows and requests together; let a dummy batch point at "
        "the sink.",
        seen_in=("sgl-project/sglang#30147", "vllm-project/vllm#49757"),
    ),
    "FR201": CheckPage(
        means="A graph was about to be replayed while the padded tail of an input held values of "
        "an earlier replay, or anything but what the contract requires. Padded rows then read and "
        "write the rows of other requests.",
        how="Before the fill, fmcheck copies each input; while it runs, torch's dispatcher shows "
        "which elements its operators write. Before the replay, each entry of the tail must have "
        "been written and hold what the contract requires. The inputs themselves are only read.",
        unseen="Fills that no `[[graph_inputs.fill]]` describes, and inputs that are neither "
        "`row_indices`, `index_like` nor in `holds` or `valid`. Where NumPy, a kernel or compiled "
        "code may have written the tail, an entry that did not change is counted as not followed, "
        "and only a wrong value is reported.",
        fix="Reset the tail before the copy: `buffer[raw:padded].zero_()`, or the padding policy "
        "of the slot. Padded rows point at the sink row.",
        seen_in=(
            "sgl-project/sglang#26292",
            "sgl-project/sglang#24401",
            "sgl-project/sglang#24743",
        ),
    ),
    "FR202": CheckPage(
        means=(
            "A graph was about to be replayed while a real row of an input held a placeholder "
            "or an invalid value, such as a -1 that the device should have replaced with a "
            "token."
        ),
        how=(
            "Before the replay, each entry of the real rows of an input is checked against its "
            "condition in `graph_inputs.head`."
        ),
        unseen="Fills that no `[[graph_inputs.fill]]` describes, and inputs without a condition. "
        "Whether a valid value is the right one is for `copies_source`.",
        fix=(
            "Fill each placeholder before the replay: look for the requests that the fill "
            "leaves out, such as one that was not in the last batch."
        ),
        seen_in=("vllm-project/vllm#40768", "vllm-project/vllm#42490"),
    ),
    "FR203": CheckPage(
        means=(
            "A graph was about to be replayed although the real rows of one of its inputs were "
            "not written since the last replay: the step runs on the previous step's values."
        ),
        how="While a fill runs, torch's dispatcher shows which elements its operators write. Each "
        "real row of an input in `graph_inputs.rewritten` must have been written.",
        unseen="Inputs that `rewritten` does not name. Where NumPy, a kernel or compiled code may "
        "have written, entries that did not change are counted as not followed.",
        fix=(
            "Copy the input on each path through the fill; if another method fills it, list "
            "that one in the `methods` of the fill."
        ),
        seen_in=("sgl-project/sglang#24401",),
    ),
    "FR204": CheckPage(
        means="A padded entry read the sink row of a relay buffer, and it held what a capture or "
        "an earlier padded write had left there.",
        how="A gather that reads a sink row compares what it holds with `sink_holds`.",
        unseen="Buffers without `sink_holds`.",
        fix="Reset the sink row after the capture, and mask padded entries where rows are written.",
        seen_in=("lightseekorg/tokenspeed#700",),
    ),
    "FR301": CheckPage(
        means="Relay rows or values are on a different device than the buffer: the access copies "
        "and waits, or fails, on some devices only.",
        how="Each access compares the devices of the buffer, its rows and its values.",
        unseen="A CPU scalar as a value is allowed, as torch allows it.",
        fix="Create rows and values on the buffer's device, without naming one accelerator.",
        seen_in=("sgl-project/sglang#4455",),
    ),
    "FR401": CheckPage(
        means="Two streams accessed the same memory, at least one of them wrote, and no fence "
        "orders the two. On a GPU the reader may get the old value, the new one, or half of each.",
        how="Streams and events are followed by vector clocks, on a CPU by virtual streams that "
        "replace the device's: no timing is involved, and the finding is the same in every run. On "
        "CUDA a kernel checks each access of a relay row against the last accesses of other "
        "streams, kept beside the buffer, and the finding is reported when the test ends.",
        unseen="Fences that Python does not see. Where there may have been some, the report "
        "says that its confidence is `incomplete`. On CUDA, what is captured in a graph and what "
        "its replays touch, unless the contract declares them.",
        fix="Record an event after the write and have the reading stream wait for it; or "
        "`reader.wait_stream(writer)` before the read.",
        seen_in=("sgl-project/sglang#25879", "sgl-project/sglang#35748"),
    ),
    "FR402": CheckPage(
        means="Memory could be reused while a stream still worked with it: it was freed, and its "
        "stream allocated again, before another stream that used it was done. Or a stream used "
        "memory that another one had allocated, without a wait for that one, whose earlier work "
        "with the same memory may not be done.",
        how="At each allocation of a stream, memory that was freed on it since its last one is "
        "checked against the clocks of the other streams that used it: `record_stream`, a join or "
        "an owner make it safe, and so does a wait that comes before the allocation. Memory that a "
        "factory left empty is checked when another stream first comes to it.",
        unseen="Memory that is managed outside of torch's allocator, and which of the freed pieces "
        "an allocation gets. On a CPU an engine may have no reason to call `record_stream`: before "
        "the first such call the finding is an advisory, "
        'which fails nothing unless `fail-on = ["FR402"]` asks for it. The second form is always '
        "one, for memory may be new.",
        fix="Call `tensor.record_stream(stream)`, keep the tensor until the stream is done, or "
        "join the streams before memory is allocated again. A stream that takes memory of another "
        "one waits for it after the allocation.",
        seen_in=("sgl-project/sglang#17850", "InternLM/lmdeploy#4792"),
    ),
    "FR403": CheckPage(
        means="The host wrote a pinned buffer while an asynchronous copy from or to it was in "
        "progress: the device may get the next step's values, or the copy goes over the host's.",
        how="From a non-blocking copy to the event or synchronization that ends it, host writes to "
        "its source or its target are bugs. What NumPy writes shows at the next such wait.",
        unseen="Writes to memory that shares the buffer and was never seen as a tensor; and to a "
        "buffer that may be the device's: created before streams were first used, and not "
        "named by `host_values`. Where nothing tells for sure whose memory it is, the finding is "
        "an advisory, as for FR404.",
        fix="Wait for the copy's event before the buffer is filled again, or use a fresh buffer.",
        seen_in=(
            "NVIDIA/TensorRT-LLM#15546",
            "vllm-project/vllm#24527",
            "vllm-project/vllm#53919",
        ),
    ),
    "FR404": CheckPage(
        means="The host read the target of an asynchronous copy before the copy was done: it may "
        "see the previous step's values.",
        how="From a non-blocking copy to the host until its event or stream was waited for, reads "
        "of its target are bugs: by `.tolist()` and the like, by pickling (`torch.save`), "
        "and by operators such as indexing. "
        "A copy on a stream that already waits for the first one reads in order. An array of "
        "NumPy's over the target must not go before the wait: it was read too early, or for "
        "nothing.",
        unseen="Reads through memory that was never seen as a tensor, and of arrays of NumPy's "
        "that are kept until the wait; and operators, in order on "
        "the copy's stream, on a target that is not certain to be the host's: neither pinned, nor "
        'returned by `.to("cpu")`, nor named by `host_values`. Of such a target the finding is an '
        'advisory, which fails nothing unless `fail-on = ["FR404"]` asks for it.',
        fix="Record an event after the copy and `synchronize()` it before the read.",
        seen_in=("vllm-project/vllm#31584",),
    ),
    "FR405": CheckPage(
        means="A wait used an older record of its event than the one its producer made: it "
        "waited for the previous step, not for this one. Or it used a later record, made on "
        "another stream, and its producer's was lost.",
        how="Each record has a number. A wait for an event of `streams.consumed_once` must use one "
        "that no earlier step has waited for; and a record that was not waited for yet must not be "
        "replaced by one of another stream, which does not order it.",
        unseen="Events recorded or waited for where Python does not see it.",
        fix="Record before the wait is issued, and give each request in flight its own event.",
        seen_in=("vllm-project/vllm#53960",),
    ),
    "FR501": CheckPage(
        means="A step waited for the device: `.item()`, `.cpu()`, `.tolist()` or the like, where "
        "the contract declares none. The overlap is lost for that step.",
        how="Calls that block the host are counted between the steps that the contract names.",
        unseen="Waits within compiled extensions that torch does not report.",
        fix="Use a value that the host already has, or start a copy and wait for it a step later.",
        seen_in=("gty111/gLLM#174", "sgl-project/sglang#29075"),
    ),
    "FR502": CheckPage(
        means="A step launched more kernels than the contract's budget for it.",
        how="Launches are counted between the steps that the contract names, on a CPU by the "
        "operations that would be one on a device.",
        unseen="The launches of a captured graph count as one.",
        fix="Fuse what belongs together, or raise the budget if the step has grown for a reason.",
        seen_in=("sgl-project/sglang#26129",),
    ),
    "FR601": CheckPage(
        means="A graph input, or a weight that the contract names in `captured`, has moved since "
        "the graph was captured: the graph still reads the old memory, which is no longer filled. "
        "Where no capture was seen, an input was bound to other memory while it was filled.",
        how="The address of each input is recorded at capture and compared before each replay. One "
        "call may capture a graph for each size: what a fill within it leaves counts for its size. "
        "Without a capture it is compared with that before the fill; an input that each fill "
        "creates again is read by no graph, and may move. A tensor that the fill itself created is "
        "reported with the line that did, and the fill with what replays. A module that `captured` "
        "leads to also counts with the tensors that it has as plain attributes, if an operator "
        "read them during the capture and the capture left them in place. What has moved for one "
        "reason, as all weights of a model, is one report.",
        unseen="Inputs and weights that the contract does not declare. Plain attributes of modules "
        "that compiled code or a kernel alone reads.",
        fix="Copy into the captured tensor instead of binding the name again; or capture again.",
        seen_in=("PaddlePaddle/FastDeploy#3457", "NVIDIA/TensorRT-LLM#16290"),
    ),
    "FR602": CheckPage(
        means="`torch.compile` deleted an async assert: the check that the engine relies on does "
        "not run, with no warning.",
        how="The asserts of a compiled function are counted before and after the compiler's "
        "passes.",
        unseen="Functions that are compiled before the watch starts.",
        fix='Give the assert a message: `torch._assert_async(condition, "why")`.',
        seen_in=("sgl-project/sglang#26108",),
    ),
    "FR603": CheckPage(
        means="What a captured graph returned was read after the next replay had overwritten it: a "
        "cache entry, a result or a draft holds what another step computed.",
        how="The contract names what a replay writes, in `outputs` of a fill. torch counts the "
        "tensors that share a storage: once one is kept over a replay, the thread's operators are "
        "followed. A view that was taken before a replay wrote its elements is reported where an "
        "operator, or the host, reads it; where the first one was taken, nobody saw. PyTorch "
        "reports the same of the outputs of compiled functions.",
        unseen="Outputs that the contract does not name. Reads in another thread than the "
        "replay's. The output itself, read through the runner's own attribute, and views that are "
        "there at the first replay: they are read again after each. A view that is created later, "
        "and is meant to be read again, is reported.",
        fix="Copy what has to outlive the step: `output[:n].clone()`.",
        seen_in=("vllm-project/vllm#52115", "vllm-project/vllm-ascend#16794"),
    ),
    "FR701": CheckPage(
        means="A value that the host reads depends on memory that was never written: padded rows "
        "of `torch.empty` that take part in a sum, say. What comes out is whatever the memory held "
        "before, so that it changes from run to run, and with the batch before.",
        how="Only with `--fmcheck-uninitialized`. Memory that an allocation leaves unfilled is "
        "filled with small random numbers and gets a twin with other values, NaN or a near whole "
        "number. Each operator of torch's that is given such memory runs once more, on the twins; "
        "where both results are alike, nothing depended on it. A number, a list, a size or a "
        "comparison that comes out differently is reported, with the allocation and the first "
        "operators that took its values on.",
        unseen="Memory on a device (compute-sanitizer's `initcheck` sees its kernels), tensors of "
        "more than 64 MB, and what an operator that is not torch's own, NumPy or compiled code "
        "computes of such memory. What something other than torch writes counts as written whole. "
        "Values that nobody looks at, and those that are printed or handed to NumPy. Each operator "
        "on such memory takes several times as long.",
        fix="Write what is read, mask it where it is read (NaN times zero is NaN: use "
        "`torch.where`), or allocate it with `torch.zeros`.",
        seen_in=("fla-org/flash-linear-attention#967", "vllm-project/vllm#37442"),
    ),
}


def check_page(code: str) -> str:
    """Returns the page of a run-time check as Markdown."""
    page = PAGES[code]
    does = (
        "an advisory: reported at the end, fails nothing unless `fail-on` names it"
        if code in ADVISORY
        else "fails the test in which it is found"
    )
    parts = [f"# {code} {CHECKS[code]}", f"run-time check, {does}"]
    for title, text in (
        ("What it means", page.means),
        ("How it is seen", page.how),
        ("What it cannot see", page.unseen),
        ("How to fix it", page.fix),
    ):
        parts.append(f"## {title}\n\n{text}")
    links = (f"- [{one}]({link(one)})" for one in page.seen_in)
    parts.append("## Seen in\n\n" + "\n".join(links))
    return "\n\n".join(parts) + "\n"


def link(pull: str) -> str:
    """Returns the address of `owner/name#number`."""
    repository, _, number = pull.partition("#")
    return _PULL.format(repository, number)
