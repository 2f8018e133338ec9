"""Cost and validation scores of a training run, from its metrics.jsonl."""

from keras_transformer.utils.timing import duration


def lines_by_step(rows):
    """Group the lines of metrics.jsonl by kind and step.

    A resumed run repeats the updates after its checkpoint. The function drops the earlier lines of these updates.

    Args:
        rows: Lines of metrics.jsonl, a list of dicts.

    Returns:
        {"train": {step: line}, "validation": {step: line}, "checkpoint": {step: line}}. Each line also has the
        "precision" of the run at that step. If the FLOP/s of the devices are known, each line also has "paper_flops",
        the paper's estimate of the number of floating-point operations: "seconds" × FLOP/s of all devices.
    """
    lines = {"train": {}, "validation": {}, "checkpoint": {}}
    rate, precision = None, None
    for row in rows:
        if row["kind"] == "start":
            precision = row.get("precision")
            rate = row["devices"] * row["device_flops_per_second"]
            for by_step in lines.values():
                for step in [step for step in by_step if step > row["step"]]:
                    del by_step[step]
        elif row["kind"] in lines:
            by_paper = {"paper_flops": row["seconds"] * rate} if rate is not None else {}
            lines[row["kind"]][row["step"]] = {**row, **by_paper, "precision": precision}
    return lines


def training_summary(rows):
    """Return the cost and the validation curve of a run.

    Args:
        rows: Lines of metrics.jsonl, a list of dicts. The function filters them with `lines_by_step`.

    Returns:
        A dict with the following entries. Entries without data in `rows` are missing.

        - "precision": for example "float32", or "float32, bfloat16" if the run resumed in another precision.
        - "steps": number of updates.
        - "tokens": source and target tokens without padding.
        - "padding": share of padding in all tokens.
        - "seconds", "evaluation_seconds", "checkpoint_seconds": time of updates, validations and checkpoints.
        - "data_seconds": time of batch preparation, mostly in parallel with updates.
        - "flops": number of floating-point operations in matrix products, computed from the batch shapes; a backward
          pass counts as two forward passes.
        - "paper_flops": number of floating-point operations, estimated by the paper's method (Table 2): seconds ×
          devices × sustained single-precision FLOP/s of a device, measured at the start of training.
        - "peak_memory_mb", "peak_device_memory_mb": peak memory of the process and of a device.
        - "curve": [{"step", "score"}], one entry per validation with decoding.
    """
    lines = lines_by_step(rows)
    validations = lines["validation"]
    updates, checkpoints = lines["train"].values(), lines["checkpoint"].values()
    precisions = dict.fromkeys(row["precision"] for row in updates)
    summary = {
        "precision": ", ".join(precisions) if precisions and None not in precisions else None,
        "steps": max(lines["train"], default=0),
        "tokens": _total(updates, "tokens") or 0,
        "seconds": round(_total(updates, "seconds") or 0),
        "evaluation_seconds": round(_total(validations.values(), "seconds") or 0),
        "data_seconds": _total(updates, "data_seconds"),
        "checkpoint_seconds": _total(checkpoints, "seconds"),
        "flops": _total(updates, "flops"),
        "paper_flops": _total(updates, "paper_flops"),
        "peak_memory_mb": _largest(rows, "peak_memory_mb"),
        "peak_device_memory_mb": _largest(rows, "peak_device_memory_mb"),
        "curve": [
            {"step": step, "score": round(row["score"], 2)}
            for step, row in sorted(validations.items())
            if "score" in row
        ],
    }
    if padded := _total(updates, "padded_tokens"):
        summary["padding"] = round(1 - summary["tokens"] / padded, 4)
    for name in ("data_seconds", "checkpoint_seconds"):
        summary[name] = summary[name] if summary[name] is None else round(summary[name], 1)
    return {name: value for name, value in summary.items() if value is not None}


def summary_lines(summary):
    """Yield log lines for the result of `training_summary`."""
    phases = {"updates": "seconds", "evaluation": "evaluation_seconds", "checkpoints": "checkpoint_seconds"}
    times = [f"{phase} {duration(summary[name])}" for phase, name in phases.items() if name in summary]
    if "data_seconds" in summary:
        times.append(f"batch preparation (mostly during updates) {duration(summary['data_seconds'])}")
    yield "time: " + ", ".join(times)
    if "flops" in summary:
        by_paper = f", {summary['paper_flops']:.2e} by the paper's method" if "paper_flops" in summary else ""
        yield f"floating point operations: {summary['flops']:.2e} counted{by_paper}"
    memory = f"peak memory {summary['peak_memory_mb']:,.0f} MB" if "peak_memory_mb" in summary else ""
    if "peak_device_memory_mb" in summary:
        memory += f", {summary['peak_device_memory_mb']:,.0f} MB on a device"
    padding = f"padding {summary['padding']:.1%} of the tokens" if "padding" in summary else ""
    if memory or padding:
        yield "; ".join(filter(None, (padding, memory)))


def _total(rows, name):
    values = [row.get(name) for row in rows]
    return sum(values) if values and None not in values else None


def _largest(rows, name):
    return max((row[name] for row in rows if name in row), default=None)
