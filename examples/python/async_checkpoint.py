"""Training that saves checkpoints while it goes on, and continues from the last one.

    python3 async_checkpoint.py FOLDER [--steps 40] [--every 10] [--device cpu]

Every so many steps the model and its optimizer are saved in the background: save_async() returns as soon as it has a copy of them. A copy that
is still being written when the next is due is waited for, so there is one at a time. Run a second time, it begins where the first has ended;
killed at any moment, with the last checkpoint that was whole.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import torch

import penstock.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    train(arguments.folder / "checkpoint.pt", arguments.steps, arguments.every, torch.device(arguments.device))


def train(path: pathlib.Path, steps: int, every: int, device: torch.device) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = resume(path, model, optimizer, device)
    saving: penstock.torch.SaveFuture | None = None
    for step in range(first, first + steps):
        loss = one_step(model, optimizer, device)
        if (step + 1) % every == 0:
            if saving is not None:
                saving.result()  # an error of the last one comes out here
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saving = penstock.torch.save_async(state, path)
            print(f"step {step + 1}: loss {loss:.4f}, being saved")
    if saving is not None:
        saving.result()
        print(f"saved {saving.progress[1]} bytes of tensors in {path}")


def resume(path: pathlib.Path, model: Any, optimizer: Any, device: torch.device) -> int:
    """The step to go on from."""
    if not path.exists():
        print("starting anew")
        return 0
    state = penstock.torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print(f"going on from step {state['step']}")
    return int(state["step"])


def one_step(model: Any, optimizer: Any, device: torch.device) -> float:
    inputs = torch.randn(32, 64, device=device)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


if __name__ == "__main__":
    main()
