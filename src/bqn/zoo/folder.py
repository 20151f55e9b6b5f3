"""A folder of packed networks: `<name>.bqn` with the network, `<name>.json` with its card."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path

from bqn.deploy.container import from_bytes
from bqn.deploy.program import Packed, PackedError
from bqn.zoo.card import NAME, Card


class UnknownNameError(ValueError):
    """No network is called so."""


class Zoo:
    """Packed networks by name.

    Parameters
    ----------
    folder : Path
        Where the files lie; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Names of all networks, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.json") if NAME.fullmatch(path.stem))

    def card(self, name: str) -> Card:
        """All about one network."""
        self._require(name)
        path = self.folder / f"{name}.json"
        card = Card.from_json(path.read_bytes(), str(path))
        if card.name != name:
            raise PackedError(f"{path}: the card is that of {card.name!r}")
        return card

    def cards(self) -> list[Card]:
        """All about all networks."""
        return [self.card(name) for name in self.names()]

    def read(self, name: str) -> Packed:
        """One network, if its file is the one that the card describes."""
        card = self.card(name)
        path = self.folder / f"{name}.bqn"
        if not path.is_file():
            raise PackedError(f"{path} is missing; install the package again")
        content = path.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != card.sha256:
            raise PackedError(f"{path} is damaged: its sha256 is {found}, its card says {card.sha256}")
        try:
            return from_bytes(content)
        except PackedError as error:
            raise PackedError(f"{path}: {error}") from None

    def _require(self, name: str) -> None:
        known = self.names()
        if name in known:
            return
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UnknownNameError(
            f"no pretrained network is called {name!r}{hint} (there are {', '.join(known) or 'none'})"
        )
