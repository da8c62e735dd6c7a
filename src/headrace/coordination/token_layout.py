"""The documents of delegation tokens in the store, as Kafka stored them. Does no I/O.

    /delegation_token/tokens/ID   {"owner", "tokenRequester", "renewers", "issueTimestamp",
                                  "expiryTimestamp", "maxTimestamp", "tokenId"}

A document does not contain the password of its token, which is computed with
delegation.token.secret.key.
"""

import json

from headrace.coordination import layout
from headrace.model.tokens import Token

TOKENS = f"{layout.DELEGATION_TOKENS}/tokens"
_VERSION = 3


def token_path(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def encode_token(token: Token) -> bytes:
    return json.dumps(
        {
            "version": _VERSION,
            "owner": token.owner,
            "tokenRequester": token.requester,
            "renewers": list(token.renewers),
            "issueTimestamp": token.issued_ms,
            "expiryTimestamp": token.expires_ms,
            "maxTimestamp": token.max_ms,
            "tokenId": token.token_id,
        }
    ).encode()


def decode_token(path: str, data: bytes) -> Token:
    try:
        document = json.loads(data)
        owner = str(document["owner"])
        return Token(
            str(document["tokenId"]),
            owner,
            str(document.get("tokenRequester", owner)),
            tuple(map(str, document["renewers"])),
            int(document["issueTimestamp"]),
            int(document["expiryTimestamp"]),
            int(document["maxTimestamp"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise layout.LayoutError(f"{path} is not a delegation token: {error!r}") from None
