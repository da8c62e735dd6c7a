"""Settings of delegation tokens."""

from headrace.config.setting import LONG, PASSWORD, Setting

TOKEN_ROWS: tuple[Setting, ...] = (
    Setting(
        "delegation.token.secret.key",
        PASSWORD,
        None,
        "The secret from which the passwords of delegation tokens are derived. It must be the same "
        "on all brokers. Without it, delegation tokens are disabled.",
    ),
    Setting(
        "delegation.token.max.lifetime.ms",
        LONG,
        "604800000",
        "The maximum lifetime of a delegation token in ms. A token cannot be renewed beyond this "
        "time.",
        low=1,
    ),
    Setting(
        "delegation.token.expiry.time.ms",
        LONG,
        "86400000",
        "The time in ms after which a delegation token expires if it is not renewed.",
        low=1,
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms",
        LONG,
        "3600000",
        "The interval in ms at which expired delegation tokens are deleted.",
        low=1,
    ),
)
