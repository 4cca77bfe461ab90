"""Run folders with planted losses, as a sweep leaves them, written without training."""

from toydepth import config, files, store

PLANTED = {"tied": 3.0, "independent": 1.0}
MADE = {"versions": {"jax": "9.8.7"}, "device": "2 x abacus", "commit": "abc1234", "batching": "map"}


def write_run(
    folder, kind="tied", depth=2, seed=0, alpha=None, gain=0.01, status="done", message="", lr=0.02, **sections
):
    """A run's folder; its loss is lower at higher rates, each replicate has a constant of its own.

    The twin's loss is higher by `gain` per doubling of the depth (None: no twin).
    """
    tree = {"teacher": {"kind": kind}, "student": {"depth": depth}, "seed": seed, "train": {"steps": 10}}
    resolved = config.resolve(config.parse(tree | {"optimizer": {"lr": lr}} | sections))
    run = store.run_folder(folder, config.run_id(resolved))
    store.write_config(run, resolved)
    loss = (1 + seed / 10) * depth ** -(PLANTED[kind] if alpha is None else alpha) * 0.02 / lr
    for step in (0, 5, 10):
        row = {"step": step, "loss": loss ** (step / 10), "loss_sem": loss / 100, "train_loss": loss}
        store.append_history(run, row | {"lr": 0.1, "tau": 0.1 * step, "seconds": step})
    if status == "done":
        flops = 1e3 * depth**2
        result = {"loss": loss, "loss_sem": loss / 100, "loss_first": loss, "loss_second": 1.2 * loss, "steps": 10}
        result |= {"parameters": 100 * depth, "flops": flops, "seconds": 2.0}
        if gain is not None:
            half = loss * depth**gain
            result |= {"half_loss": half, "slope": -0.01 if gain < 0.1 else -0.7, "converged": gain < 0.1}
            (run / "twin").mkdir(exist_ok=True)
            files.write_json(run / "twin" / "result.json", {"loss": half, "flops": flops / 2, "seconds": 1.0})
        files.write_json(run / "result.json", result | MADE)
    store.write_status(run, status, 10, message)
    return run.name
