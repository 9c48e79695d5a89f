"""A client of a Confluent-compatible schema registry.

Only the driver asks it. What an id stands for never changes, so each id is asked for once, and the
checkpoint keeps the answer: a run that has met all schemas before does not need the registry.
"""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.errors import ConfigError, UnavailableError

_TIMEOUT_S: Final = 10.0
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema by its id, with the texts of those that it refers to."""

    id: int
    #: AVRO, PROTOBUF or JSON.
    type: str
    text: str
    #: Name of the reference: text, those that others refer to first.
    references: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "text": self.text,
            "references": dict(self.references),
        }


class Registry:
    """One registry, by its address; a user and a password may be in it."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--registry {url!r} is not an address such as http://host:8081.")
        netloc = parts.hostname + (f":{parts.port}" if parts.port else "")
        self.url = urllib.parse.urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": _ACCEPT}
        if parts.username is not None:
            user = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._by_id: dict[int, RegisteredSchema] = {}

    def by_ids(self, schema_ids: Collection[int]) -> dict[int, RegisteredSchema]:
        """The schemas of ids that were found in records, without those that it does not have.

        A registry of several servers may hear of a new schema later than its first reader does,
        so it is asked again for what is missing.
        """
        left = [each for each in sorted(schema_ids) if each not in self._by_id]
        for attempt in range(_ATTEMPTS):
            if attempt and left:
                time.sleep(_PAUSE_S * attempt)
            for each in left:
                found = self._get(f"/schemas/ids/{each}")
                if found is not None:
                    self._by_id[each] = self._schema(each, found)
            left = [each for each in left if each not in self._by_id]
        return {each: self._by_id[each] for each in sorted(schema_ids) if each in self._by_id}

    def latest(self, subject: str) -> RegisteredSchema | None:
        """The newest schema of a subject, which may change; None if there is no such subject."""
        found = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return None if found is None else self._schema(int(found["id"]), found)

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """All schemas of a subject; none if there is no such subject."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        schemas = []
        for version in self._get(path) or ():
            found = self._get(f"{path}/{version}")
            if found is not None:
                schemas.append(self._schema(int(found["id"]), found))
        return schemas

    def _schema(self, schema_id: int, content: dict[str, Any]) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._add_references(content, references)
        kind = content.get("schemaType", "AVRO")
        return RegisteredSchema(schema_id, kind, content["schema"], references)

    def _add_references(self, content: dict[str, Any], found: dict[str, str]) -> None:
        for each in content.get("references") or ():
            if each["name"] in found:
                continue
            subject = urllib.parse.quote(each["subject"], safe="")
            referred = self._get(f"/subjects/{subject}/versions/{each['version']}")
            if referred is None:
                raise ConfigError(
                    f"The registry {self.url} has no version {each['version']} of "
                    f"{each['subject']}, which a schema refers to."
                )
            self._add_references(referred, found)
            found[each["name"]] = referred["schema"]

    def _get(self, path: str) -> Any:
        """The response, None for status 404; transient failures are retried."""
        request = urllib.request.Request(self.url + path, headers=self._headers)
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S * attempt)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == _NOT_FOUND:
                        return None
                    reason = f"{error.code} {error.reason}"
                if error.code < 500:
                    raise ConfigError(f"The registry {self.url} refuses {path}: {reason}") from None
            except (OSError, ValueError) as error:
                reason = str(getattr(error, "reason", error))
        raise UnavailableError(f"The registry {self.url} cannot be reached: {reason}")
