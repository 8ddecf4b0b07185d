"""The 3x3 convolution of image tokenizers, with a gradient that is fast on CPUs."""

import flax.linen as nn
import jax
import jax.numpy as jnp


def conv(features: int, name: str) -> nn.Conv:
  """Returns the 3x3 convolution that maps `[B, H, W, C]` to `[B, H, W, features]`."""
  return nn.Conv(features, (3, 3), padding=1, name=name, conv_general_dilated=_same_conv)


def _same_conv(x, kernel, *unused_args, **unused_kwargs):
  """The convolution of `conv`, with the signature that `nn.Conv` calls."""
  # XLA's kernel gradient is two to four times slower than a matrix product on CPUs, and faster on
  # accelerators.
  run = _conv_for_cpu if jax.default_backend() == 'cpu' else _plain_conv
  return run(x, kernel)


def _plain_conv(x, kernel):
  return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))


def _conv_for_cpu_forward(x, kernel):
  return _plain_conv(x, kernel), (x, kernel)


def _conv_for_cpu_backward(residuals, grad):
  """Gradients of `_plain_conv`; the kernel's is one matrix product per image, to fit CPU caches."""
  x, kernel = residuals
  grad_x = _plain_conv(grad, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))
  height, width = x.shape[1:3]
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))

  def add_image(total, image_and_grad):
    image, image_grad = image_and_grad
    patches = jnp.concatenate(
        [image[i:i + height, j:j + width] for i in range(3) for j in range(3)], axis=-1)
    return total + jnp.einsum('hwp,hwf->pf', patches, image_grad), None

  zeros = jnp.zeros((kernel[..., 0].size, kernel.shape[-1]), kernel.dtype)
  grad_kernel, _ = jax.lax.scan(add_image, zeros, (padded, grad))
  return grad_x, grad_kernel.reshape(kernel.shape)


_conv_for_cpu = jax.custom_vjp(_plain_conv)
_conv_for_cpu.defvjp(_conv_for_cpu_forward, _conv_for_cpu_backward)
