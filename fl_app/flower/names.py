"""The names of records and keys in messages, and the values that are codes.

Records follow Flower's own convention, so clients and servers that do not know this project
understand them:

| message | record | holds |
|---|---|---|
| order (`train`, `evaluate`) | ``arrays`` | the model by name |
| | ``config`` | ``server-round`` (base version + 1), ``version``, ``client-id``, ``sequence`` |
| | | and what the strategy and the user add; this project's also ``run``, ``fixed``, |
| | | ``state-count`` (the largest one that the client told) |
| reply | ``arrays`` | the upload by name; not after `evaluate` |
| | ``metrics`` | ``num-examples``; this project's also ``version``, ``loss``, ``rate-sum``; |
| | | ``fixed`` alone asks for the order once more, with the fixed part; from |
| | | real nodes with client state ``state-count`` (how often it was saved), |
| | | ``state-older`` (likewise, if it was given up because the server knew more) |
| | ``config`` | this project's: ``kind``, ``trainer``, ``encoding``, ``seal`` |
| both, where the algorithm exchanges more | ``extra`` | vectors beside the model, by name |
| order, upon the reply that asks for it | ``fixed`` | the model's fixed part as bytes, by name |
| both, where any node serves any client | ``state`` | what the client keeps between its orders |
| introduction (`query`) | ``metrics`` | ``partition-id``; this project's also ``packed``, |
| | | and ``own-data`` of nodes with data of their own. If the query |
| | | carries ``app-config``: ``num-examples`` |

Flower sends every array in a request of its own. Between a server and a client of this project
``arrays`` therefore holds one array, ``packed``, with all of them: on loopback, that halves the
transfer time of LeNet's ten.
"""

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
STATE = "state"
EXTRA = "extra"
FIXED = "fixed"  # also in an order's config: SHA-256 of the part; in a reply's metrics: 1, send it

SERVER_ROUND = "server-round"
VERSION = "version"
CLIENT_ID = "client-id"
SEQUENCE = "sequence"
ANY_NODE = "any-node"  # the node works for client `client-id`, not for a client of its own
APP_CONFIG = "app-config"  # the resolved configuration, YAML
RUN = "run"  # letters and digits, the same for all ServerApps of one resumed run

NUM_EXAMPLES = "num-examples"
KIND = "kind"
TRAINER = "trainer"  # names of the classes that trained, of algorithms with clients of their own
ENCODING = "encoding"
TOP_K = "top-k"  # the encoding in which ``arrays`` holds places, entries and buffers
PLACES, ENTRIES = "top-k.places", "top-k.entries"
MASKED = "masked"  # the encoding, and the name, of a masked vector (d,) of 32-bit integers
SEAL = "seal"  # bytes that travel with it (`fl_app.secure.seals`)
# Prefixes of an extra vector's arrays, before a colon and its name: either the whole vector, or the
# entries of its trainable part (with their places if it is sparse) and its buffers.
VECTOR, EXTRA_ENTRIES, EXTRA_PLACES, BUFFERS = "vector", "entries", "places", "buffers"
PACKED = "packed"  # the encoding, and the name, of a vector (d,); 1 where it is understood
LOSS = "loss"
RATE_SUM = "rate-sum"
DONE = "done"  # 0: the client paused
PROGRESS = "progress"
BASE_VERSION = "base-version"  # of the model that the client trained from, if not its order's
STATE_COUNT, STATE_OLDER = "state-count", "state-older"
LOSS_NAMES = (LOSS, "train_loss", "train-loss")  # this project's, and those of Flower's examples

PARTITION_ID = "partition-id"
DATA = "data"  # of a node's own configuration: path of the data that it has and no other node
OWN_DATA = "own-data"  # 1: the node has such data
