"""The systemd unit: how the service manager starts, watches, confines and ends a server.

What is hardened and why is in docs/operations.md. Three usual settings are left out on purpose:
MemoryDenyWriteExecute, since oneDNN and CUDA compile at run time; PrivateDevices, which would hide the GPU, so devices
are allowed one kind at a time instead; ProcSubset=pid, since /proc/meminfo and /proc/cpuinfo are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server.http.keys import CREDENTIAL

NAME = "lengthwise.service"
FOLDER = Path("/etc/lengthwise")
CONFIG = FOLDER / "config.toml"
KEYS = FOLDER / CREDENTIAL

STOP_MARGIN = 30.0
"""Seconds beyond --shutdown-timeout: last words to clients, the last step of each executor, and some to spare."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What differs from one machine to the next."""

    program: Path
    """The `lengthwise` that shall run, as an absolute path."""
    config: Path = CONFIG
    keys: Path = KEYS
    shutdown_timeout: float = 30.0
    """As the configuration has it, in seconds."""

    def text(self) -> str:
        """The whole unit."""
        stop = round(self.shutdown_timeout + STOP_MARGIN)
        return TEMPLATE.format(
            program=_escaped(self.program), config=_escaped(self.config), keys=_escaped(self.keys), stop=stop
        )


def _escaped(path: Path) -> str:
    """As systemd.syntax(7) wants it."""
    return str(path).replace("\\", "\\\\").replace("%", "%%").replace(" ", "\\x20")


TEMPLATE = f"""\
# Written by `lengthwise systemd`. Change it with `systemctl edit {NAME}`, which survives the next install.

[Unit]
Description=Lengthwise, an LLM inference server that schedules by length
After=network.target
StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={{program}} serve --config {{config}}
# Before the first CUDA program has run, the device nodes are not there; without a GPU this does nothing.
ExecStartPre=+-/usr/bin/nvidia-modprobe -c 0 -u
LoadCredential={CREDENTIAL}:{{keys}}
Environment=LENGTHWISE_CACHE=/var/cache/lengthwise
Environment=LENGTHWISE_JOURNAL=/var/lib/lengthwise/journal.sqlite3
Environment=HOME=/var/lib/lengthwise
Environment=PYTHONUNBUFFERED=1

Restart=on-failure
RestartSec=5
# Wrong usage and wrong configuration, which another attempt would not mend.
RestartPreventExitStatus=2 78
WatchdogSec=30
TimeoutStartSec=1800
TimeoutStopSec={{stop}}
KillMode=mixed

DynamicUser=yes
StateDirectory=lengthwise
CacheDirectory=lengthwise
RuntimeDirectory=lengthwise
ConfigurationDirectory=lengthwise
UMask=0077
LimitNOFILE=65536
LimitCORE=0

DevicePolicy=closed
DeviceAllow=char-nvidiactl rw
DeviceAllow=char-nvidia-frontend rw
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-uvm rw
DeviceAllow=char-nvidia-caps rw

CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
LockPersonality=yes
PrivateTmp=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
