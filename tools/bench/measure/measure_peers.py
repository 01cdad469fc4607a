#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole calls of OrbitKV beside the copy kernels of SGLang and LMCache, and one contiguous copy.

Pages of qwen3-8b (36 layers, K and V apart, 32 KiB each), shuffled on both sides. A figure runs
from the call until the bytes are there; ours has lookup, start, wait and release in it. What all
of them are told (pages, keys, pointers) is made before. Every case is a process of its own and
compares the bytes of one copy there and back first; figures are medians.

  pip install torch sglang-kernel==0.4.4 lmcache==0.5.2
  measure_peers.py --build BUILD [--blocks 32,128,448] [--product 8192] [--cases ours-auto,...]

--product N: beside bf16 products of side N, and what these keep. --spin-us, --manager-spin-us:
of our engine and Manager; the peers' calls end in a wait that spins.
"""
import argparse
import ctypes as C
import glob
import importlib.util
import json
import os
import site
import statistics
import subprocess
import sys
import time

LAYERS, TOKENS, WIDTH = 36, 16, 1024  # tokens of a page, elements of a token, of 2 bytes
PAGE = TOKENS * WIDTH * 2
BLOCK = LAYERS * 2 * PAGE
CASES = ["contiguous", "sglang-2", "sglang-4", "lmcache-slots", "lmcache-blocks", "ours-auto", "ours-dma", "ours-kernel"]


class Job:
    """Tensors of one case; subclasses save() and load() all blocks."""

    def __init__(self, args, blocks):
        import torch

        self.torch, self.args, self.blocks = torch, args, blocks
        order = torch.Generator().manual_seed(1)
        self.pages = 2 * blocks + 64
        self.kv = torch.empty(LAYERS, 2, self.pages, TOKENS, WIDTH, dtype=torch.bfloat16, device="cuda")
        self.kv.view(torch.int16).random_(-30000, 30000)
        order_of = torch.randperm(self.pages, generator=order)
        self.source, self.target = order_of[:blocks].clone(), order_of[blocks : 2 * blocks].clone()
        self.slots = torch.randperm(blocks, generator=order)

    def tokens(self, pages):
        torch = self.torch
        return (pages[:, None] * TOKENS + torch.arange(TOKENS)).reshape(-1).to(torch.int64).cuda()

    def addresses(self, tensors, kind=None):
        torch = self.torch
        return torch.tensor([t.data_ptr() for t in tensors], dtype=kind or torch.uint64, device="cuda")

    def close(self):
        pass


class Contiguous(Job):
    def __init__(self, args, blocks, _):
        super().__init__(args, blocks)
        torch = self.torch
        self.host = torch.empty(blocks * BLOCK, dtype=torch.uint8, pin_memory=True)
        self.device = torch.empty(blocks * BLOCK, dtype=torch.uint8, device="cuda")

    def save(self):
        self.host.copy_(self.device, non_blocking=True)

    def load(self):
        self.device.copy_(self.host, non_blocking=True)


class Sglang(Job):
    """Its kernels over a host pool of pages that hold all layers."""

    def __init__(self, args, blocks, quota):
        super().__init__(args, blocks)
        torch = self.torch
        found = [p for d in [args.libraries, *site.getsitepackages()] for p in glob.glob(d + "/**/*common_ops*.so", recursive=True)]
        torch.ops.load_library(next(p for p in found if "sm90" in p))
        self.ops, self.quota = torch.ops.sgl_kernel, int(quota)
        self.host = [torch.empty(blocks * TOKENS, LAYERS, WIDTH, dtype=torch.bfloat16, pin_memory=True) for _ in range(2)]
        self.layers = [[self.kv[i, s].view(-1, WIDTH) for i in range(LAYERS)] for s in range(2)]
        self.pointers = [self.addresses(layers) for layers in self.layers]
        self.at = [self.tokens(p) for p in (self.source, self.target, self.slots)]

    def save(self):
        (k, v), token = self.pointers, WIDTH * 2
        self.ops.transfer_kv_all_layer_lf_pf(k, self.host[0], v, self.host[1], self.at[0], self.at[2], token, LAYERS * token, LAYERS, self.quota, 32)

    def load(self):
        (k, v), token = self.layers, WIDTH * 2
        for i in range(LAYERS):
            self.ops.transfer_kv_per_layer_pf_lf(self.host[0], k[i], self.host[1], v[i], self.at[2], self.at[1], i, token, LAYERS * token, self.quota, 32)


class Lmcache(Job):
    """Objects of 256 tokens, by token slots or by blocks."""

    def __init__(self, args, blocks, how):
        super().__init__(args, blocks)
        torch = self.torch
        path = next(p for d in [args.libraries, *site.getsitepackages()] for p in glob.glob(d + "/**/c_ops*.so", recursive=True))
        spec = importlib.util.spec_from_file_location("c_ops", path)
        self.ops = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.ops)
        self.how, self.each = how, 256 // TOKENS
        self.objects = [torch.empty(2, LAYERS, 256, WIDTH, dtype=torch.bfloat16, pin_memory=True) for _ in range(blocks // self.each)]
        self.pointers = self.addresses([self.kv[i] for i in range(LAYERS)], torch.int64)
        if how == "slots":
            self.at = [self.tokens(p) for p in (self.source, self.target)]
        else:
            self.at = [p.to(torch.int64).cuda() for p in (self.source, self.target)]
            self.shape = self.ops.PageBufferShapeDesc()
            for name, value in dict(kv_size=2, nl=LAYERS, nb=self.pages, bs=TOKENS, nh=8, hs=128, element_size=2).items():
                setattr(self.shape, name, value)

    def go(self, at, direction):
        device, layout = self.torch.device("cuda:0"), self.ops.EngineKVFormat.NL_X_TWO_NB_BS_NH_HS
        if self.how == "slots":
            for i, held in enumerate(self.objects):
                self.ops.multi_layer_kv_transfer(held, self.pointers, at[i * 256 : (i + 1) * 256], device, self.pages * TOKENS, direction, layout, block_size=TOKENS, head_size=128)
            return
        for i in range(0, len(self.objects), 4):
            some = [held.data_ptr() for held in self.objects[i : i + 4]]
            self.ops.multi_layer_block_kv_transfer(self.pointers, some, at[i * self.each : (i + len(some)) * self.each], device, direction, self.shape, 256, layout, 0)

    def save(self):
        self.go(self.at[0], self.ops.TransferDirection.D2H)

    def load(self):
        self.go(self.at[1], self.ops.TransferDirection.H2D)


def struct(name, **fields):
    return type(name, (C.Structure,), {"_fields_": list(fields.items())})


# As in include/orbitkv, without what is not used behind the last field that is.
P, U32, U64, I32 = C.c_void_p, C.c_uint32, C.c_uint64, C.c_int32
Error = struct("Error", status=I32, stage=I32, os_error=I32, device_error=I32, text=C.c_char * 240)
Owner = struct("Owner", object=P, retain=P, release=P)
EngineOptions = struct("EngineOptions", size=U32, flags=U32, socket_path=C.c_char_p, embedded=P, connect_timeout_ms=I32, spin_us=U32, log=P, log_arg=P, trust_uid=U32, reserved=U32, log_ring=P)
LayerSchema = struct("LayerSchema", order=U32, segment_count=U32, segment_bytes=U64 * 8)
GroupSchema = struct("GroupSchema", kind=U32, block_tokens=U32, window_tokens=U32, layer_count=U32, layout_tag=C.c_char_p, layers=P)
NamespaceOptions = struct("NamespaceOptions", size=U32, rank_slots=U32, model=C.c_char_p, revision=C.c_char_p, dtype=C.c_char_p, adapter=C.c_char_p, salt=C.c_char_p, pipeline_stage=U32, pipeline_stages=U32, field_count=U32, group_count=U32, fields=P, groups=P)
Layer = struct("Layer", base=P, length=U64, page_stride=U64, page_count=U32, segment_count=U32, segment_offset=U64 * 8, segment_bytes=U64 * 8, owner=Owner)
BindingOptions = struct("BindingOptions", size=U32, device=U32, device_index=I32, rank_slot=U32, layer_count=U32, copy_threads=U32, layers=P, copy_path=U32, copy_sms=U32)
Keys = struct("Keys", group=U32, count=U32, key_bytes=U32, reserved=U32, keys=C.c_char_p)
LookupOptions = struct("LookupOptions", size=U32, flags=U32, consumers=U32, group_count=U32, groups=P, timeout_ms=I32, reserved=U32)
LookupResult = struct("LookupResult", tokens=U64, group_count=U32, shortened=U32, groups=U32 * 32)
Ready = struct("Ready", stream_count=U32, reserved=U32, streams=P)
RestoreGroup = struct("RestoreGroup", group=U32, first=U32, count=U32, reserved=U32, pages=P)
RestoreOptions = struct("RestoreOptions", size=U32, flags=U32, group_count=U32, event_count=U32, groups=P, events=P, ready=Ready, user_data=U64, owner=Owner)
PublishGroup = struct("PublishGroup", keys=Keys, first_position=U32, tokens=U32, parent=C.c_char_p, pages=P)
PublishOptions = struct("PublishOptions", size=U32, flags=U32, group_count=U32, reserved=U32, groups=P, ready=Ready, read_done_event=P, user_data=U64, owner=Owner)
HOLD = 64  # publishes whose keys are made before


class Ours(Job):
    def __init__(self, args, blocks, path):
        super().__init__(args, blocks)
        os.environ["ORBITKV_COPY"] = path
        self.lib, self.error = C.CDLL(args.build + "/lib/libkv.so"), Error()
        socket = "/tmp/measure-peers.%d.sock" % os.getpid()
        manager = [args.build + "/orbitkv-manager", "--memory", "%dM" % max(64, 4 * blocks * BLOCK >> 20), "--socket", socket]
        manager += ["--spin-us", str(args.manager_spin_us)] if args.manager_spin_us is not None else []
        self.manager = subprocess.Popen(manager, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.manager.stdout.readline()
        self.engine = self.open("okv_engine_open", None, self.options(EngineOptions, "okv_engine_options_init", socket_path=socket.encode(), spin_us=args.spin_us))
        schema = (LayerSchema * LAYERS)(*[LayerSchema(i, 2, (U64 * 8)(PAGE, PAGE)) for i in range(LAYERS)])
        group = GroupSchema(1, TOKENS, 0, LAYERS, b"NHD", C.addressof(schema))
        self.ns = self.open("okv_namespace_open", self.engine, self.options(NamespaceOptions, "okv_namespace_options_init", rank_slots=1, model=b"peers", pipeline_stages=1, group_count=1, groups=C.addressof(group)))
        half, whole = self.pages * PAGE, 2 * self.pages * PAGE
        layers = (Layer * LAYERS)(*[Layer(self.kv[i].data_ptr(), whole, PAGE, self.pages, 2, (U64 * 8)(0, half), (U64 * 8)(PAGE, PAGE)) for i in range(LAYERS)])
        self.binding = self.open("okv_binding_register", self.ns, self.options(BindingOptions, "okv_binding_options_init", device=2, layer_count=LAYERS, layers=C.addressof(layers)))
        self.pages_of = [(U32 * blocks)(*p.tolist()) for p in (self.source, self.target)]
        self.keys = [b"".join((i * 100000 + j).to_bytes(32, "little") for j in range(blocks)) for i in range(HOLD)]
        self.round = -1

    def check(self, rc):
        if rc:
            raise RuntimeError(self.error.text.decode() or str(rc))

    def options(self, kind, init, **values):
        made = kind()
        getattr(self.lib, init)(C.byref(made))
        for name, value in values.items():
            setattr(made, name, value)
        return made

    def open(self, call, parent, options):
        made = P()
        above = [] if parent is None else [parent]
        self.check(getattr(self.lib, call)(*above, C.byref(options), C.byref(made), C.byref(self.error)))
        return made

    def end(self, op):
        self.check(self.lib.okv_op_wait(op, -1, None))
        self.lib.okv_op_release(op)

    def save(self):
        self.round += 1
        keys = Keys(0, self.blocks, 32, 0, self.keys[self.round % HOLD])
        group = PublishGroup(keys, 0, self.blocks * TOKENS, None, C.addressof(self.pages_of[0]))
        options, op = PublishOptions(C.sizeof(PublishOptions), 0, 1, 0, C.addressof(group)), P()
        self.check(self.lib.okv_publish_start(self.binding, C.byref(options), C.byref(op), C.byref(self.error)))
        self.end(op)

    def load(self):
        keys = Keys(0, self.blocks, 32, 0, self.keys[self.round % HOLD])
        look, found, lease, op = LookupOptions(C.sizeof(LookupOptions), 0, 1, 1, C.addressof(keys), 5000), LookupResult(), P(), P()
        self.check(self.lib.okv_lookup(self.ns, C.byref(look), C.byref(found), C.byref(lease), C.byref(self.error)))
        assert found.tokens == self.blocks * TOKENS, "not all blocks are there"
        group = RestoreGroup(0, 0, self.blocks, 0, C.addressof(self.pages_of[1]))
        options = RestoreOptions(C.sizeof(RestoreOptions), 0, 1, 0, C.addressof(group))
        self.check(self.lib.okv_restore_start(self.binding, lease, C.byref(options), C.byref(op), C.byref(self.error)))
        self.end(op)
        self.lib.okv_lease_release(lease)

    def close(self):
        self.lib.okv_binding_unregister(self.binding)
        self.lib.okv_namespace_close(self.ns)
        self.lib.okv_engine_close(self.engine)
        self.manager.terminate()
        self.manager.wait()


KINDS = {"contiguous": Contiguous, "sglang": Sglang, "lmcache": Lmcache, "ours": Ours}


def verified(job):
    torch = job.torch
    if isinstance(job, Contiguous):
        return True
    job.save()
    torch.cuda.synchronize()
    job.kv[:, :, job.target.cuda()] = 0
    torch.cuda.synchronize()
    job.load()
    torch.cuda.synchronize()
    return torch.equal(job.kv[:, :, job.source.cuda()].view(torch.int16), job.kv[:, :, job.target.cuda()].view(torch.int16))


def timed(job, call, runs):
    torch, seconds = job.torch, []
    for i in range(runs + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return job.blocks * BLOCK / statistics.median(seconds[3:]) / 1e9


def beside_product(job, call, side, runs):
    """GB/s of one call after the other, and what the products keep of their speed."""
    torch = job.torch
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    c, model, copies = torch.empty_like(a), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)

    def products():
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        with torch.cuda.stream(model):
            marks[0].record()
            for _ in range(60 * 8192**3 // side**3):
                torch.matmul(a, b, out=c)
            marks[1].record()
        return marks

    keeps, rates = [], []
    for i in range(runs + 1):
        torch.cuda.synchronize()
        alone = products()
        alone[1].synchronize()
        beside, start, times = products(), time.perf_counter(), 0
        while not beside[1].query():
            with torch.cuda.stream(copies):
                call()
            copies.synchronize()
            times += 1
        rates.append(times * job.blocks * BLOCK / (time.perf_counter() - start) / 1e9)
        keeps.append(alone[0].elapsed_time(alone[1]) / beside[0].elapsed_time(beside[1]))
    return statistics.median(rates[1:]), statistics.median(keeps[1:])


def one_case(args):
    import torch

    torch.cuda.init()
    name, _, how = args.one.partition("-")
    row = {"case": args.one, "blocks": int(args.blocks)}
    job = KINDS[name](args, int(args.blocks), how)
    if not verified(job):
        raise SystemExit("bytes differ")
    for direction, call in (("publish", job.save), ("restore", job.load)):
        if args.product:
            row[direction], row[direction + "_keeps"] = beside_product(job, call, args.product, args.runs)
        else:
            row[direction] = timed(job, call, args.runs)
    job.close()
    print("ROW", json.dumps(row))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="the build folder")
    parser.add_argument("--libraries", default="/nonexistent", help="a folder with the peers' libraries, before site-packages")
    parser.add_argument("--blocks", default="32,128,448")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--product", type=int, default=0)
    parser.add_argument("--spin-us", type=int, default=50)
    parser.add_argument("--manager-spin-us", type=int)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one_case(args)
    for blocks in args.blocks.split(","):
        beside = " beside products of side %d" % args.product if args.product else ""
        print("%s blocks, %d MiB%s" % (blocks, int(blocks) * BLOCK >> 20, beside), flush=True)
        for case in args.cases.split(","):
            same = ["--build", args.build, "--libraries", args.libraries, "--runs", str(args.runs), "--product", str(args.product), "--spin-us", str(args.spin_us)]
            same += ["--manager-spin-us", str(args.manager_spin_us)] if args.manager_spin_us is not None else []
            ran = subprocess.run([sys.executable, os.path.abspath(__file__), *same, "--one", case, "--blocks", blocks], capture_output=True, text=True)
            row = next((json.loads(line[4:]) for line in ran.stdout.splitlines() if line.startswith("ROW ")), None)
            if row is None:
                print("  %-15s %s" % (case, (ran.stderr.strip().splitlines() or ["no result"])[-1]), flush=True)
                continue
            print("  %-15s" % case + " ".join("%s %.1f GB/s%s" % (d, row[d], ", keeps %.1f %%" % (100 * row[d + "_keeps"]) if args.product else "") for d in ("publish", "restore")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
