"""A real S3 server with users besides its owner, who may do in a bucket what the server allows them: nothing at first."""

from __future__ import annotations

import os
import subprocess

from include.local.store import LocalS3, s3_server

# Not secret: the store holds samples and listens on loopback.
OTHER, OTHERS_SECRET = "executors", "another-secret-of-this-machine"
_ROLES = {False: "user", True: "admin"}


class S3WithUsers(LocalS3):
    """With one more user, OTHER."""

    def command(self) -> list[str]:
        users = self.folder / "users"
        users.mkdir(parents=True, exist_ok=True)
        made = super().command()
        at = made.index("posix")
        # Changed rights count at once.
        return [*made[:at], "--iam-dir", str(users), "--iam-cache-disable", *made[at:]]

    def start(self) -> bool:
        """As that of the class above; the user has no rights."""
        started = super().start()
        self._manage("create-user", "--secret", OTHERS_SECRET, "--role", _ROLES[False])
        return started

    def allow(self, allowed: bool) -> None:
        """Gives the user all rights, or takes them."""
        self._manage("update-user", "--role", _ROLES[allowed])

    def _manage(self, command: str, *options: str) -> None:
        owner = {"ADMIN_ACCESS_KEY_ID": self.user, "ADMIN_SECRET_ACCESS_KEY": self.secret}
        asked = [str(s3_server()), "admin", "--endpoint-url", self.address, command, "--access", OTHER, *options]
        subprocess.run(asked, env=os.environ | owner, check=True, capture_output=True, timeout=20)
