"""Settings of the mechanism OAUTHBEARER."""

from headrace.config.setting import INT, LIST, LONG, STRING, Setting

OAUTH_ROWS: tuple[Setting, ...] = (
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        STRING,
        None,
        "The keys that verify the tokens of OAUTHBEARER: the https:// URL of a JWKS document, or "
        "file:///path of a JWKS document or of a public key in PEM format.",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        LONG,
        "3600000",
        "The time in ms after which the keys of OAUTHBEARER are loaded again. A token with an "
        "unknown key loads them earlier, at most every 10 s.",
        low=1,
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        STRING,
        None,
        "The issuer (iss) that tokens must have. OAUTHBEARER requires this setting.",
    ),
    Setting(
        "sasl.oauthbearer.expected.audience",
        LIST,
        "",
        "The accepted audiences (aud): a token must have one. OAUTHBEARER requires this setting.",
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name",
        STRING,
        "sub",
        "The claim of a token that contains the name of the user.",
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        INT,
        "30",
        "The maximum difference in s between the clocks of the broker and of the issuer of tokens.",
        low=0,
        high=600,
    ),
)
