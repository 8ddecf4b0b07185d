"""How the tokens of a round come about."""

from cspd_jax.continuous.rules.own import own
from cspd_jax.continuous.rules.path_test import path_test
from cspd_jax.continuous.rules.relaxed import relaxed
from cspd_jax.continuous.rules.released import released
from cspd_jax.continuous.rules.token_test import Ends, Judged, Test, token_test

__all__ = ('Ends', 'Test', 'Judged', 'own', 'path_test', 'relaxed', 'released', 'token_test')
