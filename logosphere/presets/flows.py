"""Published configurations of the systems on the simplex."""

from logosphere.presets.preset import Aspect, Preset

CHECKED = "tests/parity/test_flows_parity.py"
NO_ESTIMATE = Aspect("self-conditioning", "none")
BELIEFS = "learns faster at equal CPU: the network need not learn Bayes' rule at one position"

BFN = Preset(
    system="bfn",
    name="paper",
    source="Graves et al. 2023, arXiv:2308.07037, section 6 and the text8 configuration of the released code",
    checked=CHECKED,
    aspects=(
        Aspect(
            "parameterisation",
            "the network reads 2θ - 1 and the time, and its softmax is the output distribution",
            "the network reads θ without the time, and log θ is added to its logits",
            BELIEFS,
            {"input": "scaled", "posterior_head": False},
        ),
        Aspect(
            "weighting",
            "the continuous-time loss K β₁ t |e_x - p|², without the reconstruction term",
            "cross-entropy, the reconstruction term included",
            "lower variance, and it learns faster at equal CPU",
            {"loss": "diffusion"},
        ),
        Aspect(
            "schedule",
            "β = β₁ t² with √β₁ = 0.75, chosen for the 27 letters of text8",
            "β = β₁ t² with K β₁ = 4 (log K + 3), 0.93 for 27 letters",
            "tokens are clear at the end for every size of the vocabulary",
            {"accuracy": 0.5625},
        ),
        Aspect(
            "time",
            "uniform on [0, 1]",
            "where there is something to learn, by the measured nats",
            "lower variance",
            {"clock": "uniform"},
        ),
        NO_ESTIMATE,
        Aspect(
            "sampler",
            "n messages at equal times about tokens drawn from the output distribution, then its mode at t = 1",
            "messages at times of equal information, the token drawn at the end",
            "better at few steps, and a draw from the model",
        ),
        Aspect(
            "optimiser",
            "AdamW, lr 1e-4 without schedule, betas 0.9 and 0.98, weight decay 0.01, clip 5, EMA 0.9999",
            "the optimiser of the recipe",
            "tuned for short trainings on CPUs",
        ),
        Aspect("network", "no dropout"),
    ),
    optim={
        "lr": 1e-4,
        "warmup": 0,
        "min_lr_ratio": 1.0,
        "beta1": 0.9,
        "beta2": 0.98,
        "weight_decay": 0.01,
        "clip": 5.0,
    },  # fmt: skip
    ema=0.9999,
    sampler="messages",
    missing="24 layers of width 768 with skip connections between early and late ones, and up to ten million steps; "
    "the released sampler sends its last message never (n - 1 of n), the paper's algorithm all n",
)

FIELD = Aspect(
    "parameterisation",
    "the network reads the point of the sphere and the time; its output, made tangent at the point, is the velocity",
    "the network reads the posterior of each token given its state, and its softmax over tokens gives the velocity",
    BELIEFS,
    {"predicts": "velocity", "posterior_head": False, "input": "state"},
)
ERROR = Aspect(
    "weighting",
    "mean squared error of velocities, without weights",
    "cross-entropy of tokens",
    "learns faster at equal CPU, and its optimum is the posterior that the figure needs",
    {"loss": "velocity"},
)
GEODESIC_TIME = Aspect(
    "time",
    "uniform on [0, 1], the whole geodesic",
    "by the measured nats, on the first half of the geodesic, after which the token is certain",
    "lower variance; the second half has nothing to learn",
    {"clock": "uniform"},
)
EULER = Aspect(
    "sampler",
    "equal Euler steps with the exponential map from t = 0 to 1, then the largest coordinate",
    "Euler steps of equal information to the middle of the geodesic, then a token drawn from the softmax",
    "fewer steps are wasted where the token is already certain",
)

FISHER = Preset(
    system="fisher-flow",
    name="paper",
    source="Davis et al. 2024, arXiv:2405.14664, and the DNA configuration of the released code",
    checked=CHECKED,
    aspects=(
        FIELD,
        ERROR,
        Aspect(
            "schedule",
            "geodesics from |N(0, I)|, normalised: uniform on the orthant; mini-batch optimal transport is optional "
            "and off in the DNA experiments (coupling=optimal)",
        ),
        GEODESIC_TIME,
        NO_ESTIMATE,
        EULER,
        Aspect(
            "optimiser",
            "AdamW, lr 1e-3 falling to 8e-5 along a cosine, clip 1",
            "the optimiser of the recipe",
            "tuned for short trainings on CPUs",
        ),
        Aspect("network", "no dropout"),
    ),
    optim={
        "lr": 1e-3,
        "warmup": 0,
        "min_lr_ratio": 0.08,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.01,
        "clip": 1.0,
    },  # fmt: skip
    ema=0.0,
    sampler="euler-flow",
    missing="the convolutional network of the DNA experiments (body=convolution is near it) and their conditioning",
)

SFM = Preset(
    system="fisher-flow",
    name="sfm",
    source="Cheng et al. 2024, arXiv:2405.16441 (statistical flow matching), the text8 configuration",
    checked=CHECKED,
    aspects=(
        FIELD,
        ERROR,
        Aspect(
            "schedule",
            "geodesics from square roots of Dirichlet(1, …, 1), uniform on the simplex",
            "geodesics from points uniform on the orthant",
            "the default follows Fisher-Flow",
            {"prior": "simplex"},
        ),
        GEODESIC_TIME,
        NO_ESTIMATE,
        EULER,
        Aspect(
            "optimiser",
            "Adam, lr 3e-4 for text8",
            "the optimiser of the recipe",
            "tuned for short trainings on CPUs",
        ),
    ),
    optim={
        "lr": 3e-4,
        "warmup": 0,
        "min_lr_ratio": 1.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "clip": None,
    },  # fmt: skip
    sampler="euler-flow",
    missing="a DiT of 12 layers of width 768; the likelihood by the ODE to t = 0.995, for which the default with "
    "prior=simplex has ode_nelbo",
)

DIRICHLET = Preset(
    system="dirichlet-flow",
    name="paper",
    source="Stark et al. 2024, arXiv:2402.05841, and the promoter configuration of the released code",
    checked=CHECKED,
    aspects=(
        Aspect(
            "parameterisation",
            "the network reads [(1 - w) z, w z] with w = 2 / (α + 1) and the time; its softmax classifies the token",
            "the network reads the posterior of each token given its state, whose logarithm is added to its logits",
            BELIEFS,
            {"input": "doubled", "posterior_head": False},
        ),
        Aspect("weighting", "cross-entropy without weights"),
        Aspect(
            "schedule",
            "Dirichlet(1 + (α - 1) e_x) up to α = 8, a flow without noise",
            "up to α = 2 + 2 log K or 8, with Wright-Fisher noise that keeps the marginals",
            "the noise gives a bound; large vocabularies need a larger α to be told apart",
            {"alpha": 8.0, "churn": 0},
        ),
        Aspect(
            "time",
            "α - 1 ~ 2 Exp(1), without end (here constant within each of 512 cells of α up to 8)",
            "by the measured nats, up to the last α",
            "lower variance",
            {"clock": "unbounded"},
        ),
        NO_ESTIMATE,
        Aspect(
            "sampler",
            "100 values of α from 1 to 8, Euler steps between them, projected onto the simplex; the likeliest token of "
            "the last prediction (99 steps here)",
            "steps of equal information that are exact for held rates, then noise; the token is drawn at the end",
            "never leaves the simplex, and draws from the model",
        ),
        Aspect(
            "optimiser",
            "Adam, lr 5e-4 without schedule, clip 1",
            "the optimiser of the recipe",
            "tuned for short trainings on CPUs",
        ),
        Aspect("network", "no dropout"),
    ),
    optim={
        "lr": 5e-4,
        "warmup": 0,
        "min_lr_ratio": 1.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "clip": 1.0,
    },  # fmt: skip
    ema=0.0,
    sampler="euler-flow",
    missing="the convolutional network of the DNA experiments (body=convolution is near it), guidance by probability "
    "addition, and distillation to one step; C(y, α) is exact here and 1% off in the released code",
)

DDSM = Preset(
    system="ddsm",
    name="paper",
    source="Avdeyev et al. 2023, arXiv:2305.10699, and the promoter configuration of the released code",
    checked="tests/parity/test_flows_diffusion.py",
    aspects=(
        Aspect(
            "parameterisation",
            "K - 1 sticks; the network reads z and the time; its output less its mean, times √w(t), is the score of z",
            "all shares diffuse together; the network reads posteriors, and its softmax over tokens gives the score",
            BELIEFS + "; no token comes before another",
            {"construction": "sticks", "predicts": "score", "posterior_head": False, "input": "state"},
        ),
        Aspect(
            "weighting",
            "score matching in stick coordinates, weighted by h_j v_j (1 - v_j), without a reconstruction term",
            "cross-entropy of tokens",
            "learns faster at equal CPU",
            {"loss": "diffusion"},
        ),
        Aspect(
            "schedule",
            "Jacobi diffusions with (a, b) = (1, K - j) at the speeds 2 / (a + b), from one-hot states (here 16 lives, "
            "where fewer than 1% of tokens cannot be read off the state)",
            "from 1 + 2 log K lives, at least 7",
            "smaller tables; the network reads the token from context as well",
            {"concentration": 16},
        ),
        Aspect(
            "time",
            "in proportion to √w(t), the root mean square of the weighted score, with weights 1 / √w(t)",
            "by the measured nats",
            "lower variance",
            {"clock": "importance"},
        ),
        NO_ESTIMATE,
        Aspect(
            "sampler",
            "equal Euler-Maruyama steps of the sticks, the last without noise, then the largest share; time dilation "
            "is the option dilation, with as many times more steps",
            "steps of equal information, exact for held pulls; the token is drawn at the end",
            "never leaves the simplex, and draws from the model",
        ),
        Aspect(
            "optimiser",
            "Adam, lr 5e-4 without schedule, no clipping",
            "the optimiser of the recipe",
            "tuned for short trainings on CPUs",
        ),
        Aspect("network", "no dropout"),
    ),
    optim={
        "lr": 5e-4,
        "warmup": 0,
        "min_lr_ratio": 1.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "clip": None,
    },  # fmt: skip
    ema=0.0,
    sampler="euler-flow",
    missing="sticks begin at 0 or 1 and are seen from t = 0.01 to 4 in the paper; here they begin as Beta(1, b + M) "
    "and Beta(1 + M, b) (concentration=M), whose densities are finite sums, and go on until they are noise; at most "
    "512 tokens; the convolutional network of the DNA experiments (body=convolution is near it)",
)

PRESETS: list[Preset] = [BFN, FISHER, SFM, DIRICHLET, DDSM]
