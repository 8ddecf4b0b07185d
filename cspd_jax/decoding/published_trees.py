"""Static trees that published systems draft along.

Facts from the EAGLE, Medusa and LANTERN releases: how many children every node has.
"""

from cspd_jax.decoding.tree import branching

# EAGLE-1's tree, 25 drafts; LANTERN's for Lumina-mGPT.
EAGLE = branching('4 0:3 1:2 2:2 3:1 00:3 01:2 02:2 10:1 000:3 0000:2')
# LANTERN's for LlamaGen and Anole, 57 drafts.
LANTERN = branching(
    '5 0:4 1:3 2:3 3:2 4:1 00:4 01:3 02:3 03:2 10:2 11:1 20:1 '
    '000:4 001:3 002:2 003:1 010:2 011:1 020:1 0000:3 0001:2 0010:2 0011:1 0020:1')
# Two variations of LANTERN's release on EAGLE's tree, 25 drafts each.
BALANCED = branching('3 0:3 1:3 2:2 00:3 01:2 10:2 11:2 000:3 0000:2')
REVERSE_BALANCED = branching('3 0:2 1:1 2:1 00:3 01:2 10:1 000:3 001:2 0000:4 0001:3')
# Medusa's for four heads, 63 drafts.
MEDUSA = branching(
    '10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 00:9 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 '
    '000:4 001:1 002:1 010:1')
