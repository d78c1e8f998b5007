"""`python -m tests.gpu.programs [NAME ...]`: programs over torch and other libraries, on a GPU.

Each runs in processes of its own, bare and watched. The results have to be equal, and nothing may
be reported but what `REPORTED` names. Ends with 0 if that is so of all that ran, 1 if not, or if
none did, 2 if there is no such program. `FMCHECK_PROGRAM_DEVICE=cpu` shows what needs no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parent.parent.parent
DEVICE = os.environ.get("FMCHECK_PROGRAM_DEVICE", "cuda")
SECONDS = 120
PROGRAMS: dict[str, Callable[[], object]] = {}
#: What has to be reported; that it is right was found by reading.
REPORTED = {
    "pinned_memory_touched_early": {"FR403", "FR404"},
    "batching_without_upload_wait": {"FR401"},
    "batching_without_compute_wait": {"FR401"},
    "batching_without_download_wait": {"FR404"},
}
#: What may be reported as well, as `incomplete`: races of transformers' own (docs/gpu.md).
ALSO = {"FR401", "FR403"}


def program(run: Callable[[], object]) -> Callable[[], object]:
    """Adds a program: it returns what can be compared."""
    PROGRAMS[run.__name__] = run
    return run


def llama(layers: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).to(DEVICE).eval()


def perceptron() -> Any:
    torch.manual_seed(0)
    layers = (one for _ in range(3) for one in (torch.nn.Linear(64, 64), torch.nn.GELU()))
    return torch.nn.Sequential(*layers).to(DEVICE)


def batches(count: int = 6) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(16, 64, generator=draw) for _ in range(count)]


def train(model: Any, optimizer: Any) -> list[float]:
    said = []
    for batch in batches():
        optimizer.zero_grad()
        loss = model(batch.to(DEVICE, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


def descent(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


# --- generation ---


def generated(**options: Any) -> Any:
    model = llama()
    prompts = torch.arange(1, 25).view(2, 12).to(DEVICE)
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, **options}
    made = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
    return made.tolist()


@program
def static_cache() -> object:
    return generated(cache_implementation="static", disable_compile=True)


@program
def static_cache_compiled() -> object:
    return generated(cache_implementation="static")


@program
def offloaded_cache() -> object:
    return generated(cache_implementation="offloaded")


@program
def beams() -> object:
    return generated(num_beams=3)


# --- graphs ---


@program
def graphed_callables() -> object:
    model = perceptron()
    sample = torch.randn(16, 64, device=DEVICE, requires_grad=True)
    return train(torch.cuda.make_graphed_callables(model, (sample,)), descent(model))


@program
def reduce_overhead() -> object:
    model = perceptron()
    return train(torch.compile(model, mode="reduce-overhead"), descent(model))


@program
def captured_training() -> object:
    model, taken = perceptron(), torch.zeros(16, 64, device=DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
    side, said = torch.cuda.Stream(), []

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(taken).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for batch in batches():
        taken.copy_(batch)
        graph.replay()
        said.append(loss.item())
    return said


# --- several devices' ways, on one ---


def group() -> Any:
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
    os.environ["MASTER_PORT"] = str(20_000 + os.getpid() % 20_000)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    return dist


def sharded(**options: Any) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    group()
    model = perceptron()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01))


@program
def fsdp() -> object:
    return sharded()


@program
def fsdp_offloaded() -> object:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return sharded(offload_policy=CPUOffloadPolicy())


@program
def fsdp_of_old() -> object:
    from torch.distributed.fsdp import FullyShardedDataParallel

    group()
    model = FullyShardedDataParallel(perceptron(), use_orig_params=True)
    return train(model, descent(model))


@program
def ddp() -> object:
    group()
    model = torch.nn.parallel.DistributedDataParallel(perceptron(), gradient_as_bucket_view=True)
    return train(model, descent(model))


@program
def collectives() -> object:
    dist, said = group(), []
    for batch in batches():
        one = batch.to(DEVICE)
        work = dist.all_reduce(one, async_op=True)
        other = batch.to(DEVICE) * 2
        work.wait()
        said.append((one + other).sum().item())
    return said


# --- streams and the host's memory ---


@program
def backward_on_streams() -> object:
    model, said = perceptron(), []
    optimizer, sides = descent(model), (torch.cuda.Stream(), torch.cuda.Stream())
    for batch in batches():
        optimizer.zero_grad()
        taken, made, current = batch.to(DEVICE), [], torch.cuda.current_stream()
        for factor, side in enumerate(sides, 1):
            side.wait_stream(current)
            with torch.cuda.stream(side):
                made.append(model(taken * factor))
        for side in sides:
            current.wait_stream(side)
        loss = (made[0] * made[1]).square().mean()
        loss.backward()
        optimizer.step()
        said.append(round(loss.item(), 5))
    return said


@program
def prefetched() -> object:
    loader = iter(torch.utils.data.DataLoader(batches(12), batch_size=None, pin_memory=True))
    side, model, said = torch.cuda.Stream(), perceptron(), []

    def load() -> Any:
        batch = next(loader, None)
        with torch.cuda.stream(side):
            return None if batch is None else batch.to(DEVICE, non_blocking=True)

    coming = load()
    while coming is not None:
        torch.cuda.current_stream().wait_stream(side)
        batch = coming
        batch.record_stream(torch.cuda.current_stream())
        coming = load()
        said.append(model(batch).sum().item())
    return said


@program
def activations_on_the_host() -> object:
    model = perceptron()

    def loss_of(batch: torch.Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return model(batch)

    return train(loss_of, descent(model))


@program
def two_pinned_buffers() -> object:
    side, model, said = torch.cuda.Stream(), perceptron(), []
    pinned = [torch.empty(16, 64, pin_memory=True) for _ in range(2)]
    taken = [torch.empty(16, 64, device=DEVICE) for _ in range(2)]
    sent, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    side.wait_stream(torch.cuda.current_stream())
    for step, batch in enumerate(batches(8)):
        one = step % 2
        sent[one].synchronize()
        pinned[one].numpy()[:] = batch.numpy()
        with torch.cuda.stream(side):
            side.wait_event(used[one])
            taken[one].copy_(pinned[one], non_blocking=True)
            sent[one].record(side)
        torch.cuda.current_stream().wait_event(sent[one])
        total = model(taken[one]).sum()
        used[one].record()
        said.append(total.item())
    return said


@program
def optimizer_on_the_host() -> object:
    model, said = perceptron(), []
    kept = [one.detach().cpu().pin_memory() for one in model.parameters()]
    up, down = torch.cuda.Stream(), torch.cuda.Stream()
    for batch in batches():
        model.zero_grad()
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        down.wait_stream(torch.cuda.current_stream())
        grads = []
        with torch.cuda.stream(down):
            for one in model.parameters():
                grads.append(one.grad.to("cpu", non_blocking=True))
                one.grad.record_stream(down)
        down.synchronize()
        for weight, grad in zip(kept, grads, strict=True):
            weight.sub_(grad, alpha=0.1)
        up.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(up):
            for one, weight in zip(model.parameters(), kept, strict=True):
                one.copy_(weight, non_blocking=True)
        torch.cuda.current_stream().wait_stream(up)
        up.synchronize()
        said.append(round(loss.item(), 5))
    return said


@program
def pinned_memory_touched_early() -> object:
    staging, target = (torch.zeros(16, 64, pin_memory=True) for _ in range(2))
    model, side = perceptron(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for batch in batches(3):
        with torch.cuda.stream(side):
            staging.copy_(batch)
            taken = staging.to(DEVICE, non_blocking=True)
            target.copy_(model(taken).detach(), non_blocking=True)
        target.clone()
    return None


@program
def lightning() -> object:
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.said = perceptron().cpu(), []

        def training_step(self, batch: torch.Tensor, _: int) -> Any:
            loss = self.model(batch).square().mean()
            self.said.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return descent(self)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    module = Module()
    kind = "gpu" if DEVICE == "cuda" else "cpu"
    trainer = lightning.Trainer(max_epochs=1, accelerator=kind, devices=1, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(batches(12), batch_size=None))
    return module.said


# --- transformers' continuous batching ---


def batched(**options: Any) -> list[list[int]]:
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 60, (24,), generator=draw).tolist()
    prompts = [torch.randint(1, 255, (one,), generator=draw).tolist() for one in lengths]
    sizes = {"block_size": 32, "num_blocks": 64, "max_batch_tokens": 128}
    options = {"use_async_batching": True, "use_cuda_graph": True, **sizes, **options}
    done = llama().generate_batch(
        prompts,
        generation_config=GenerationConfig(
            max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(max_requests_per_batch=16, **options),
    )
    return [done[name].generated_tokens for name in sorted(done, key=lambda one: (len(one), one))]


@program
def batching() -> object:
    return batched()


@program
def batching_eager() -> object:
    return batched(use_cuda_graph=False)


@program
def batching_synchronous() -> object:
    return batched(use_async_batching=False)


@program
def batching_without_upload_wait() -> object:
    from transformers.generation.continuous_batching import input_outputs

    def get_model_kwargs(self: Any, use_padding: bool = False) -> Any:
        pair = self.io_pairs[self.current_pair]
        pair.transfer_inputs_h2d(self.h2d_stream)
        self.h2d_stream.record_event(pair.h2d_over)
        return pair.device_io.get_model_kwargs(use_padding=use_padding)

    input_outputs.ContinuousBatchingAsyncIOs.get_model_kwargs = get_model_kwargs
    batched(use_cuda_graph=False)
    return None


@program
def batching_without_compute_wait() -> object:
    from transformers.generation.continuous_batching import input_outputs

    def retrieve_device_outputs(self: Any) -> None:
        pair = self.io_pairs[self.current_pair]
        pair.transfer_outputs_d2h(self.d2h_stream)
        self.d2h_stream.record_event(pair.d2h_over)
        self.current_pair = 1 - self.current_pair

    input_outputs.ContinuousBatchingAsyncIOs.retrieve_device_outputs = retrieve_device_outputs
    batched(use_cuda_graph=False)
    return None


@program
def batching_without_download_wait() -> object:
    from transformers.generation.continuous_batching import input_outputs

    def prepare_batch_update(self: Any) -> Any:
        return self.io_pairs[self.current_pair].host_io.prepare_batch_update()

    input_outputs.ContinuousBatchingAsyncIOs.prepare_batch_update = prepare_batch_update
    batched(use_cuda_graph=False)
    return None


# --- running them ---


def here(name: str, is_watched: bool) -> dict[str, Any]:
    """Runs a program in this process; returns its result, what was reported, and any error."""
    import fmcheck

    said: dict[str, Any] = {"certain": [], "incomplete": []}
    try:
        if not is_watched:
            return {**said, "result": PROGRAMS[name]()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fmcheck.FmcheckWarning)
            with fmcheck.watch(mode="warn") as session:
                said["result"] = PROGRAMS[name]()
        for one in session.violations:
            said["incomplete" if one.confidence else "certain"].append(one.code)
        said["problems"] = [*session.dead, *session.coverage().problems]
    except ImportError as err:
        said["lacking"] = str(err)
    except Exception:
        said["error"] = traceback.format_exc()
    return said


def apart(name: str, is_watched: bool) -> dict[str, Any]:
    """Runs a program in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.json"
        command = [sys.executable, "-m", "tests.gpu.programs", "--one", name, str(path)]
        environment = {**os.environ, "FMCHECK_PROGRAM_WATCHED": "1" * is_watched}
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"still running after {SECONDS} s"}
        if not path.exists():
            return {"error": f"exit status {done.returncode}\n{done.stderr}"}
        said: dict[str, Any] = json.loads(path.read_text())
        return said


def judged(name: str, bare: dict[str, Any], watched: dict[str, Any]) -> Fact:
    """Returns whether a program was what it is without a watch, and reported as it has to be."""
    goal = " ".join(sorted(REPORTED.get(name, ()))) or "equal, nothing reported"
    lacking = bare.get("lacking") or watched.get("lacking")
    if lacking:
        return Fact(name, f"not run: {lacking}", "", goal, None)
    if "error" in bare:
        return Fact(name, f"not run, it fails bare: {_last(bare)}", "", goal, None)
    if "error" in watched:
        return Fact(name, f"fails watched: {_last(watched)}", "", goal, False)
    certain, every = set(watched["certain"]), {*watched["certain"], *watched["incomplete"]}
    is_equal = bare["result"] == watched["result"]
    asked = REPORTED.get(name, set())
    may_be = asked | ALSO if name.startswith("batching") else asked
    is_right = is_equal and asked <= every <= may_be and certain <= may_be
    is_right &= bool(asked) or not certain
    words = [*sorted(every), *watched.get("problems", ()), *["results differ"] * (not is_equal)]
    return Fact(name, " ".join(words) or "equal", "", goal, is_right and not watched["problems"])


def _last(said: dict[str, Any]) -> str:
    return str(said["error"]).strip().splitlines()[-1][:200]


def run(names: Sequence[str]) -> Iterator[Fact]:
    """Runs programs, several at a time."""
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as several:
        both = several.map(lambda name: [apart(name, one) for one in (False, True)], names)
        for name, (bare, watched) in zip(names, both, strict=True):
            yield judged(name, bare, watched)


def main(arguments: Sequence[str]) -> int:
    """Runs the programs that are named, or all, and prints a line for each."""
    if arguments[:1] == ["--one"]:
        said = here(arguments[1], bool(os.environ["FMCHECK_PROGRAM_WATCHED"]))
        Path(arguments[2]).write_text(json.dumps(said, default=str))
        return 0
    unknown = [name for name in arguments if name not in PROGRAMS]
    if unknown:
        known = ", ".join(PROGRAMS)
        print(f"tests.gpu.programs: no `{unknown[0]}`; expected one of {known}", file=sys.stderr)
        return 2
    facts = []
    for fact in run(arguments or list(PROGRAMS)):
        facts.append(fact)
        print(fact, flush=True)
    ran = [one for one in facts if one.ok is not None]
    print(
        f"{sum(map(_is_right, ran))} right of {len(ran)} that ran, {len(facts) - len(ran)} not run"
    )
    return 0 if ran and all(map(_is_right, ran)) else 1


def _is_right(fact: Fact) -> bool:
    return fact.ok is True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
