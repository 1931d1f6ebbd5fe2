"""Experiments on a loaded model and texts, one family of experiments a room: frames come out."""
