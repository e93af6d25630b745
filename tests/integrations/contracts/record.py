"""Record what deltavc relies on in an engine's source: names, parameters and endpoints, as JSON.

    python tests/integrations/contracts/record.py sglang 0.5.23 SITE > tests/integrations/contracts/sglang.json
    python tests/integrations/contracts/record.py vllm 0.33.0 SITE > tests/integrations/contracts/vllm.json

SITE is where the engine's package lies, as its wheel has it. It is parsed and never imported. When an engine has
changed something, it shows in the difference of the JSON, and in the tests that read it.
"""

import ast
import json
import sys
from pathlib import Path

WORKER = "vllm/v1/worker/gpu_worker.py"
LINEAR = "layers/linear.py"
VOCAB = "layers/vocab_parallel_embedding.py"
LAYERS = {
    LINEAR: ("ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear", "RowParallelLinear"),
    VOCAB: ("VocabParallelEmbedding", "ParallelLMHead"),
}


def main(engine, version, site):
    tree = Tree(Path(site))
    found = {"engine": engine, "version": version} | {"sglang": sglang, "vllm": vllm}[engine](tree)
    json.dump(found, sys.stdout, indent=1)
    print()


def sglang(tree):
    srt = "sglang/srt"
    updater = tree.method(f"{srt}/model_executor/model_runner_components/weight_updater.py", "WeightUpdater")
    requests = ("UpdateWeightsFromTensor", "BeginWeightUpdate", "EndWeightUpdate", "PauseGeneration")
    others = ("ContinueGeneration", "UpdateWeightVersion")
    return {
        "update_weights_from_tensor": parameters(updater("update_weights_from_tensor")),
        "loader_is_called_with": calls(updater("update_weights_from_tensor"), "custom_loader"),
        "hook_register": parameters(tree.method(f"{srt}/plugins/hook_registry.py", "HookRegistry")("register")),
        "hook_types": names_in(tree.classes(f"{srt}/plugins/hook_registry.py")["HookType"]),
        "groups": functions(tree.module(f"{srt}/distributed/parallel_state.py"), "get_tp_group", "get_pp_group"),
        "requests": {
            name: fields(tree.classes(f"{srt}/managers/io_struct.py")[f"{name}ReqInput"])
            for name in (*requests, *others)
        },
        "endpoints": endpoints(
            tree.module(f"{srt}/entrypoints/http_server.py"),
            "/update_weights_from_tensor",
            "/begin_weight_update",
            "/end_weight_update",
            "/pause_generation",
            "/continue_generation",
            "/flush_cache",
            "/update_weight_version",
            "/model_info",
            "/ready",
            "/server_info",
        ),
        "layers": layers(tree, srt),
    }


def vllm(tree):
    engine = tree.classes("vllm/distributed/weight_transfer/base.py")["WeightTransferEngine"]
    methods = [node for node in engine.body if isinstance(node, ast.FunctionDef)]
    worker = tree.classes(WORKER)["Worker"], tree.classes("vllm/v1/worker/worker_base.py")["WorkerBase"]
    factory = tree.method("vllm/distributed/weight_transfer/factory.py", "WeightTransferEngineFactory")
    found = {}
    for path in ("rl/online", "serve/dev/rpc", "serve/dev/cache", "serve/dev/server_info"):
        found |= endpoints(tree.module(f"vllm/entrypoints/{path}/api_router.py"))
    wanted = ("/pause", "/resume", "/is_paused", "/weight_info", "/update_weight_version", "/collective_rpc")
    caches = ("/reset_prefix_cache", "/reset_encoder_cache")
    updates = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")
    return {
        "engine_methods": {node.name: parameters(node) for node in methods},
        "engine_abstract": [node.name for node in methods if "abstractmethod" in ast.unparse(node)[:40]],
        "register_engine": parameters(factory("register_engine")),
        "create_engine_calls": calls(factory("create_engine"), "engine_cls"),
        "worker_attributes": sorted({name for each in worker for name in attributes(each)}),
        "groups": functions(tree.module("vllm/distributed/parallel_state.py"), "get_world_group"),
        "endpoints": {path: found[path] for path in (*wanted, *caches, "/server_info", *updates)},
        "layers": layers(tree, "vllm/model_executor"),
    }


class Tree:
    """A package's source."""

    def __init__(self, site):
        self._site = site

    def module(self, path):
        return ast.parse((self._site / path).read_text())

    def classes(self, path):
        return {node.name: node for node in self.module(path).body if isinstance(node, ast.ClassDef)}

    def method(self, path, name):
        """Gives methods of a class by their name."""
        body = self.classes(path)[name].body
        return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}.__getitem__


def parameters(function):
    found = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    return [*found, *(f"*{arg.arg}" for arg in function.args.kwonlyargs)]


def functions(module, *names):
    found = {node.name: parameters(node) for node in module.body if isinstance(node, ast.FunctionDef)}
    return {name: found[name] for name in names}


def calls(function, name):
    """The arguments of the call of a name."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    return [ast.unparse(arg) for arg in found[0].args]


def fields(node):
    """A request's fields: what each is by default, or null where it has to be given."""
    annotated = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return {each.target.id: None if each.value is None else ast.unparse(each.value) for each in annotated}


def names_in(node):
    return [each.targets[0].id for each in node.body if isinstance(each, ast.Assign)]


def attributes(node):
    """A class's methods, and what they assign to self."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("__"):
            yield each.name
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for target in targets if isinstance(each, (ast.Assign, ast.AnnAssign)) else ():
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr


def endpoints(module, *paths):
    """Routes by path: methods, and where parameters come from."""
    found = {}
    for node in module.body:
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant):
                path, verb = decorator.args[0].value, decorator.func.attr
                methods = [verb.upper()]
                for keyword in decorator.keywords:
                    if keyword.arg == "methods":
                        methods = ast.literal_eval(keyword.value)
                if isinstance(path, str) and path.startswith("/") and verb in ("get", "post", "api_route"):
                    found[path] = {"methods": methods, "parameters": sources(node)}
    return {path: found[path] for path in paths} if paths else found


def sources(function):
    """The parameters of an endpoint: its body's class, or "body" or "query" for a single value."""
    args = function.args.args
    defaults = [None] * (len(args) - len(function.args.defaults)) + function.args.defaults
    found = {}
    for arg, default in zip(args, defaults, strict=True):
        said = f"{ast.unparse(arg.annotation)} = {default and ast.unparse(default)}" if arg.annotation else ""
        if "Body(embed=True)" in said:
            found[arg.arg] = "body"
        elif "Body()" in said:
            found[arg.arg] = ast.unparse(arg.annotation).removeprefix("Annotated[").partition(",")[0]
        elif "Query(" in said:
            found[arg.arg] = "query"
    return found


def layers(tree, root):
    """What each layer sets on itself, beside what `module` gives."""
    return {
        name: sorted(set(attributes(tree.classes(f"{root}/{path}")[name])))
        for path, names in LAYERS.items()
        for name in names
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
