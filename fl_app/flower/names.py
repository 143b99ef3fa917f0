"""The names of records and keys in messages (`fl_app.flower.codec` says what they hold)."""

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
UPLOAD = "upload"
STATE = "state"
EXTRA = "extra."  # followed by the name of a vector

SERVER_ROUND = "server-round"
VERSION = "version"
CLIENT_ID = "client-id"
SEQUENCE = "sequence"
ANY_NODE = "any-node"  # the node works for client `client-id`, not for a client of its own
APP_CONFIG = "app-config"  # the resolved configuration, YAML
# Keys of an order's config that this project sets itself.
RESERVED = (
    VERSION,
    CLIENT_ID,
    SEQUENCE,
    APP_CONFIG,
    "width",
    "window",
    "continues",
    "fresh_version",
)
FROZEN = "frozen"  # traces of frozen and private parameters (`fl_app.client.flat.FlatModel`)
RUN = "run"  # letters and digits, the same for all ServerApps of one resumed run

NUM_EXAMPLES = "num-examples"
LOSS = "loss"
LOSS_NAMES = (LOSS, "train_loss", "train-loss")  # this project's, and those of Flower's examples
TRAINER = "trainer"  # names of the classes that trained, of algorithms with clients of their own

# A vector's arrays: either the whole, or the rounded entries of its trainable part and its buffers.
VECTOR, ENTRIES, BUFFERS = "vector", "entries", "buffers"

PARTITION_ID = "partition-id"
DATA = "data"  # of a node's own configuration: path of its own data
