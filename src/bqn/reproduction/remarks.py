"""What figures cannot say: remarks on single networks and recipes, shown on the page of results."""

from __future__ import annotations

from collections.abc import Mapping

# By architecture, data and recipe; a remark is shown once there is a record.
REMARKS: Mapping[tuple[str, str, str], str] = {
    ("vgg", "cifar10", "paper"): (
        "From a Xavier start the signal dies on its way through eight layers ([start.md](start.md)), and the network "
        "stays at chance. What start the paper's own figures had we do not know."
    ),
}
