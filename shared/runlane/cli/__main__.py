from __future__ import annotations

from runlane.cli import main

main()
