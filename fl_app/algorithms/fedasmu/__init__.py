"""FedASMU: staleness-aware mixing on the server, a fresh model in mid-training on the device.

Liu, Jia, Che, Huo, Ren, Zhou, Dou: "FedASMU: Efficient Asynchronous Federated Learning with Dynamic
Staleness-Aware Model Update", AAAI 2024, arXiv:2312.05770, Algorithms 1 and 2.

Server (`fl_app.algorithms.fedasmu.server`), on the upload w_i of device i, which started from
version o, at version t, with staleness s = t - o + 1 (refused if s > tau):

    xi = lambda_i / (sqrt(t) s^sigma_i) + iota_i,    alpha = mu_a xi / (1 + mu_a xi)
    w_{t+1} = w_t + alpha (w_i - w_t)

Before that lambda_i, sigma_i and iota_i descend the gradient of the device's loss at the model that
it received, through the mixing weight of the device's last upload.

Device (`fl_app.algorithms.fedasmu.trainer`), after l* local epochs, if there is a newer version g:

    phi = gamma_i / sqrt(g) (1 - upsilon_i / sqrt(g - o + 1)),    beta = mu_b phi / (1 + mu_b phi)
    w <- w + beta (w_g - w)

gamma_i and upsilon_i are learned in the same way. For a device's first order an LSTM on the server
chooses l*; afterwards Q-learning on the device does (`fl_app.algorithms.fedasmu.slots`). The reward
is the fall of a batch's loss by the merge.

Symbols: mu_a mixing_scale, lambda_0 lambda0, sigma_0 sigma0, iota_0 iota0, their rates lambda_lr,
sigma_lr, iota_lr; tau max_staleness; mu_b client.merge_scale, gamma_0 client.gamma0, upsilon_0
client.upsilon0, their rates client.gamma_lr, client.upsilon_lr; eta_RL rl_lr.

Deviations: the paper's control gradients have the opposite sign (they climb the loss; option:
`signs`) and, for sigma, ln(sigma) instead of lambda ln(s). Here they are the derivatives. The
device's mean gradient is its displacement over the sum of its rates, with the merge included
(options: `mean_by_epochs`, `exclude_merge`), and other devices' uploads between its own are ignored
in the control gradients, as in the paper (option: `chain`). sqrt(t) is sqrt(max(t, 1)) (option:
`clock_from_one`), phi, xi, lambda and iota are at least 0, sigma is in [0, 5], and a refused upload
makes no version. Equation 9 is taken at the merged model, the pause follows l* whole epochs, and a
reward is compared with the baseline from before it. The LSTM starts untrained, because the paper's
"historical data" are not available. Slots are drawn from its probabilities, as REINFORCE's gradient
requires, and not epsilon-greedily, because the most probable slot of an untrained LSTM has no
merit. Both losses of a reward use the same dropout mask.
"""

from fl_app.algorithms.fedasmu.server import FedASMU

__all__ = ["FedASMU"]
