"""Client of the Agent Governance Control Plane, with the standard library alone.

    from agent_governance import AgentClient, permitted, mask

    client = AgentClient("https://governance.example.com", key)
    answer = client.ask({"action_type": "tool_call", "tool_name": "refund", "arguments": {"amount": 900}})
    if permitted(answer):
        result = mask(refund(amount=900), answer)

Whatever is raised: the action was not permitted, and must not be done.
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import hashlib
import hmac
import http.client
import json
import random
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

__all__ = [
    "AgentClient",
    "Cancelled",
    "MaskError",
    "ProblemError",
    "SvcError",
    "UnavailableError",
    "Webhook",
    "WebhookError",
    "mask",
    "permitted",
    "verify_webhook",
]
__version__ = "0.1.0"

MASKED = "[masked]"
_DECISIONS = frozenset(["allow", "allow_with_masking", "deny", "escrow", "rate_limited"])
# status codes after which the same request may succeed
_PASSING = frozenset([429, 502, 503, 504])
_MOST_WAIT = 30.0
_FIRST_WAIT = 0.2
_MOST_BYTES = 64 * 1024 * 1024
_POLL_SECONDS = 30
_MOST_SILENCE = 120.0
# the pause before a call that is not waiting for people is asked for again
_AGAIN = 0.5


class SvcError(Exception):
    """What this client raises. No message has the key, a header or an argument in it."""


class ProblemError(SvcError):
    """The server refused the request, and says why."""

    def __init__(
        self,
        problem: Mapping[str, Any],
        retry_after: Optional[int] = None,
        escrow_id: Optional[str] = None,
    ) -> None:
        super().__init__("%s: %s" % (problem["code"], problem.get("detail") or problem.get("title")))
        self.problem = dict(problem)
        self.code = str(problem["code"])
        self.status = int(problem.get("status") or 0)
        #: seconds after which the same may work
        self.retry_after = retry_after
        #: with POLICY_CHANGED: the new hold to wait for
        self.escrow_id = escrow_id


class UnavailableError(SvcError):
    """There was no answer, or none that can be understood, or the server could not do it now.

    What became of the request is not known: the same call may be asked for again.
    """

    def __init__(
        self,
        message: str,
        problem: Optional[Mapping[str, Any]] = None,
        retry_after: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.problem = None if problem is None else dict(problem)
        self.retry_after = retry_after


class MaskError(SvcError):
    """The value has no form that a mask could be sure of: none of it may be shown."""


class WebhookError(SvcError):
    """A webhook was not sent by the server, is too old, or was altered."""


class Cancelled(SvcError):
    """The caller's `stop` was set."""


def permitted(evaluation: Mapping[str, Any]) -> bool:
    return evaluation.get("decision") in ("allow", "allow_with_masking")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    # requests, and above all the key, are meant for this server
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


class AgentClient:
    """What an agent asks of the control plane, with an agent key. May be used by several threads.

    Every request may be sent again without harm, and is, where there was no answer: a call is named by its `call_id`,
    which is made up where the caller gives none. Give the id of your own call (a tool_call_id) where the call may be
    taken up again by another process.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        tenant: Optional[str] = None,
        timeout: float = 10.0,
        retries: int = 4,
    ) -> None:
        """`timeout`: seconds that one attempt may take, beyond what a long poll asks for."""
        parts = urllib.parse.urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("base_url must be an http(s) URL")
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ValueError("key must be an API key or an agent key")
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        headers = {"Accept": "application/json", "User-Agent": "agent-governance-python/" + __version__}
        if tenant is not None:
            headers["X-Svc-Tenant"] = tenant
        # a closure, so that printing an object's attributes does not print the key
        self.__headers = lambda: {**headers, "Authorization": "Bearer " + key}
        self.__opener = urllib.request.build_opener(_NoRedirects)

    def __repr__(self) -> str:
        return "AgentClient(%r)" % self.base_url

    def __getstate__(self) -> None:
        raise TypeError("a client is not pickled: it has a key")

    def evaluate(
        self, request: Mapping[str, Any], stop: Optional[threading.Event] = None
    ) -> Dict[str, Any]:
        """Decides on one action."""
        return _evaluation(self._send("POST", "/v1/evaluate", _named(request), stop=stop))

    def evaluate_all(
        self, requests: Sequence[Mapping[str, Any]], stop: Optional[threading.Event] = None
    ) -> List[Union[Dict[str, Any], SvcError]]:
        """Decides on up to 50 actions, each by itself, in their order: a decision each, or what `evaluate` would raise."""
        body = {"requests": [_named(one) for one in requests]}
        answer = self._send("POST", "/v1/evaluate/batch", body, stop=stop)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != len(requests):
            raise _unreadable()

        def result(one: Any) -> Union[Dict[str, Any], SvcError]:
            try:
                if isinstance(one, dict) and "error" in one:
                    status = one["error"].get("status", 0) if isinstance(one["error"], dict) else 0
                    return _error(one["error"], status, None, one.get("escrow_id"))
                return _evaluation(one)
            except SvcError as error:
                return error

        return [result(one) for one in results]

    def ask(
        self,
        request: Mapping[str, Any],
        max_wait: Optional[float] = None,
        on_hold: Optional[Callable[[Dict[str, Any]], None]] = None,
        stop: Optional[threading.Event] = None,
    ) -> Dict[str, Any]:
        """Decides on one action, and waits where it is held until people have decided: then goes on with what was released.

        Ends with a permit, a denial or a limit; with the hold (`escrow`) only after `max_wait` seconds. The same request
        with the same `call_id` takes up the same call, in another process too, and days later. `on_hold` is told once of
        each hold that is waited for: where people approve it is its `page_url`.
        """
        named = {**_named(request), "resume": True}
        end = None if max_wait is None else time.monotonic() + max_wait
        told = None
        while True:
            try:
                answer = self.evaluate(named, stop=stop)
            except ProblemError as error:
                # the release does not cover every rule that now holds it: the call waits for its new hold
                if error.code != "POLICY_CHANGED":
                    raise
                _pause(_AGAIN, stop)
                continue
            hold = answer.get("escrow")
            over = end is not None and time.monotonic() >= end
            if answer["decision"] != "escrow" or not isinstance(hold, dict) or over:
                return answer
            if told != hold["id"] and on_hold is not None:
                on_hold(hold)
            told = hold["id"]
            if hold["status"] != "held":
                _pause(_AGAIN, stop)
            else:
                self.wait(hold["id"], max_wait=None if end is None else end - time.monotonic(), stop=stop)

    def wait(
        self,
        hold_id: str,
        status: str = "held",
        max_wait: Optional[float] = None,
        stop: Optional[threading.Event] = None,
    ) -> Dict[str, Any]:
        """The hold as soon as it has another status than this one, or as it is after `max_wait` seconds.

        `stop` ends it after the long poll under way, which takes up to 30 seconds.
        """
        end = None if max_wait is None else time.monotonic() + max_wait
        silent_since: Optional[float] = None
        while True:
            left = _POLL_SECONDS if end is None else max(0.0, end - time.monotonic())
            seconds = int(min(_POLL_SECONDS, -(-left // 1)))
            path = "/v1/escrow/%s?%s" % (
                urllib.parse.quote(hold_id, safe=""),
                urllib.parse.urlencode({"wait": seconds, "status": status}),
            )
            over = False
            try:
                hold = self._send("GET", path, longer=seconds, stop=stop)
                if not isinstance(hold, dict) or not isinstance(hold.get("status"), str):
                    raise _unreadable()
                over = end is not None and time.monotonic() >= end
                if hold["status"] != status or over:
                    return hold
                silent_since = None
            except SvcError as error:
                # people take hours: a server that restarts in the meantime does not end the wait
                passing = isinstance(error, UnavailableError) or (
                    isinstance(error, ProblemError) and error.status == 429
                )
                now = time.monotonic()
                silent_since = now if silent_since is None else silent_since
                if not passing or now - silent_since > _MOST_SILENCE or (end is not None and now >= end):
                    raise
                _pause(1 + 4 * random.random(), stop)

    def report(
        self, event_id: str, outcome: str, answer: Any = None, stop: Optional[threading.Event] = None
    ) -> None:
        """Says what became of a permitted action (`succeeded` or `failed`), once; the same again changes nothing."""
        body = {"event_id": event_id, "outcome": outcome}
        if answer is not None:
            body["answer"] = answer
        self._send("POST", "/v1/outcomes", body, stop=stop)

    def _send(
        self,
        method: str,
        path: str,
        body: Optional[Mapping[str, Any]] = None,
        longer: float = 0,
        stop: Optional[threading.Event] = None,
    ) -> Any:
        data = None
        headers = self.__headers()
        if body is not None:
            try:
                data = json.dumps(body, allow_nan=False).encode("utf-8")
            except (TypeError, ValueError):
                # the error's message may quote an argument
                raise ValueError("the request is not JSON") from None
            headers["Content-Type"] = "application/json"
        attempt = 0
        while True:
            answered = self._once(method, path, headers, data, self.timeout + longer)
            last = attempt >= self.retries
            attempt += 1
            if answered is not None:
                status, told, escrow_id, content = answered
                passing = status in _PASSING and not last and (told is None or told <= _MOST_WAIT)
                if not passing:
                    return _content(status, told, escrow_id, content)
            else:
                told = None
                if last:
                    raise UnavailableError("the server did not answer")
            backoff = min(_MOST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1))
            _pause(random.random() * backoff if told is None else told + random.random() * _FIRST_WAIT, stop)

    def _once(
        self, method: str, path: str, headers: Mapping[str, str], data: Optional[bytes], timeout: float
    ) -> Optional[Tuple[int, Optional[int], Optional[str], bytes]]:
        """Status, Retry-After, the hold that is named, and the body; None when there was no answer."""
        request = urllib.request.Request(self.base_url + path, data=data, headers=dict(headers), method=method)
        try:
            try:
                response = self.__opener.open(request, timeout=timeout)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                content = response.read(_MOST_BYTES + 1)
                if len(content) > _MOST_BYTES:
                    return None
                told = _seconds(response.headers.get("Retry-After"))
                return response.status, told, response.headers.get("X-Svc-Escrow-Id"), content
        except (OSError, http.client.HTTPException):
            # an error here may quote what was sent
            return None


def _named(request: Mapping[str, Any]) -> Dict[str, Any]:
    named = dict(request)
    if named.get("call_id") is None:
        named["call_id"] = str(uuid.uuid4())
    return named


def _unreadable() -> UnavailableError:
    return UnavailableError("the answer of the server is not understood")


def _evaluation(answer: Any) -> Dict[str, Any]:
    """Only what is a decision for sure: whatever else came as 200 permits nothing."""
    if not isinstance(answer, dict) or not isinstance(answer.get("event_id"), str):
        raise _unreadable()
    if not isinstance(answer.get("decision"), str) or answer["decision"] not in _DECISIONS:
        raise _unreadable()
    return answer


def _content(status: int, told: Optional[int], escrow_id: Optional[str], content: bytes) -> Any:
    try:
        parsed = json.loads(content.decode("utf-8")) if content else None
    except ValueError:
        parsed = None
        if 200 <= status < 300:
            raise _unreadable() from None
    if 200 <= status < 300:
        return parsed
    raise _error(parsed, status, told, escrow_id)


def _error(problem: Any, status: int, told: Optional[int], escrow_id: Optional[str]) -> SvcError:
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return UnavailableError("the server did not answer as expected (HTTP %d)" % status)
    if status >= 500:
        message = "%s: %s" % (problem["code"], problem.get("detail") or problem.get("title"))
        return UnavailableError(message, problem, told)
    return ProblemError(problem, told, escrow_id)


def _seconds(header: Optional[str]) -> Optional[int]:
    """The seconds of a Retry-After: a number, or a date."""
    if header is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", header):
        return int(header)
    try:
        at = email.utils.parsedate_to_datetime(header).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0, int(at - time.time()) + 1)


def _pause(seconds: float, stop: Optional[threading.Event]) -> None:
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise Cancelled("stopped by the caller")


# -- masks ------------------------------------------------------------------------------------------------------------

_STEP = re.compile(
    r"(\.{1,2})(?:([A-Za-z_\u0080-\U0010FFFF][A-Za-z0-9_\u0080-\U0010FFFF]*)|(\*))"
    r"|\[(?:([0-9]{1,9})|(\*)|'([^'\\]+)')\]"
)
# whether it selects everything below, and what it selects: a member, an element, or all (None)
_Mask = List[Tuple[bool, Union[str, int, None]]]


def mask(value: Any, by: Union[Mapping[str, Any], Sequence[str]]) -> Any:
    """A copy of what a tool answered with the masks of its decision applied, as a proxy would give it to the agent.

    `by` is the decision, or its masks. Text is taken as JSON. Raises a MaskError where the value is no JSON, or a mask is
    not understood: show none of it then.
    """
    paths = by.get("masks") if isinstance(by, Mapping) else by
    if paths is None and isinstance(by, Mapping):
        return value
    if not isinstance(paths, (list, tuple)):
        raise MaskError("masks are a list of paths")
    if not paths:
        return value
    masks = [_parse_mask(path) for path in paths]
    if isinstance(value, str):
        return _mask_text(value, masks)
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # the error's message may quote the value
        raise MaskError("the value cannot be masked: it has no form in JSON") from None
    return _apply(json.loads(text), masks)


def _mask_text(text: str, masks: List[_Mask]) -> str:
    def constant(_name: str) -> None:
        raise ValueError

    try:
        masked = _apply(json.loads(text, parse_constant=constant), masks)
        # quoted prose is also JSON, but has no members that a mask could select
        if not isinstance(masked, str) or masked == MASKED:
            return json.dumps(masked, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        pass
    raise MaskError("the text cannot be masked: it is not JSON") from None


def _parse_mask(path: str) -> _Mask:
    refused = MaskError("the mask %s is not understood" % json.dumps(path))
    if not isinstance(path, str) or not path.startswith("$"):
        raise refused
    steps: _Mask = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise refused
        dots, name, any_member, index, any_element, quoted = found.groups()
        select: Union[str, int, None] = None
        if not any_member and not any_element:
            select = int(index) if index is not None else name if name is not None else quoted
        steps.append((dots == "..", select))
        at = found.end()
    return steps


def _apply(value: Any, masks: List[_Mask]) -> Any:
    """Replaces every value that a mask selects, in place."""
    if any(not steps for steps in masks):
        return MASKED
    for steps in masks:
        # by identity: a container occurs once in a tree
        nodes: Dict[int, Any] = {id(value): value} if isinstance(value, (dict, list)) else {}
        for n, (descend, select) in enumerate(steps):
            if descend:
                nodes = _with_descendants(nodes)
            following: Dict[int, Any] = {}
            for node in nodes.values():
                for key in _selected(node, select):
                    if n == len(steps) - 1:
                        node[key] = MASKED
                    elif isinstance(node[key], (dict, list)):
                        following[id(node[key])] = node[key]
            nodes = following
    return value


def _with_descendants(nodes: Dict[int, Any]) -> Dict[int, Any]:
    found = dict(nodes)
    waiting = list(nodes.values())
    while waiting:
        node = waiting.pop()
        for child in node.values() if isinstance(node, dict) else node:
            if isinstance(child, (dict, list)) and id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return found


def _selected(node: Any, select: Union[str, int, None]) -> List[Any]:
    if isinstance(node, list):
        if select is None:
            return list(range(len(node)))
        return [select] if isinstance(select, int) and select < len(node) else []
    if select is None:
        return list(node)
    return [select] if isinstance(select, str) and select in node else []


# -- webhooks ---------------------------------------------------------------------------------------------------------

_BASE64_SECRET = re.compile(r"whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)")
_MOST_SIGNATURES = 10


class Webhook:
    """A verified webhook. `id` is the same for all attempts to deliver an event."""

    def __init__(self, id: str, timestamp: int, event: Any) -> None:
        self.id = id
        self.timestamp = timestamp
        self.event = event


def verify_webhook(
    secret: Union[str, Sequence[str]],
    headers: Mapping[str, str],
    body: Union[bytes, str],
    tolerance: float = 300,
    now: Optional[float] = None,
) -> Webhook:
    """Verifies a webhook by the headers of Standard Webhooks and parses its body, which must be as it was received.

    With several secrets, one of them must have signed. Raises a WebhookError.
    """
    given = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower in given:
            raise WebhookError("the header %s is given twice" % lower)
        given[lower] = value

    def header(name: str) -> str:
        value = given.get(name)
        if not isinstance(value, str) or value == "":
            raise WebhookError("the header %s is missing" % name)
        return value

    event_id, stamp, signatures = (
        header("webhook-id"),
        header("webhook-timestamp"),
        header("webhook-signature"),
    )
    if not re.fullmatch(r"[0-9]{1,12}", stamp):
        raise WebhookError("the time of the webhook is not a number")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        raise WebhookError("the webhook is too old, or a clock is wrong")
    data = body.encode("utf-8") if isinstance(body, str) else bytes(body)
    signed = ("%s.%s." % (event_id, stamp)).encode("utf-8") + data
    for one in [secret] if isinstance(secret, str) else secret:
        if one == "":
            raise WebhookError("there is no secret")
        expected = hmac.new(_secret_bytes(one), signed, hashlib.sha256).digest()
        for signature in signatures.split(" ")[:_MOST_SIGNATURES]:
            if not signature.startswith("v1,"):
                continue
            try:
                decoded = base64.b64decode(signature[3:], validate=True)
            except (binascii.Error, ValueError):
                continue
            if hmac.compare_digest(decoded, expected):
                try:
                    return Webhook(event_id, int(stamp), json.loads(data.decode("utf-8")))
                except ValueError:
                    raise WebhookError("the body is not JSON") from None
    raise WebhookError("the signature is not that of the secret")


def _secret_bytes(secret: str) -> bytes:
    """The decoded bytes after `whsec_`, or the secret's own bytes if it has another form."""
    found = _BASE64_SECRET.fullmatch(secret)
    if found and found.group(1):
        return base64.b64decode(found.group(1))
    return secret.encode("utf-8")
