"""The forward passes of BERT and GPT-2 once more, from the state dict alone, and the certificate.

Nothing in the twins comes from transformers or from torch.nn: matrix products, exp, erf, tanh and
sums. The certificate compares them with the running model, stage by stage.
"""
